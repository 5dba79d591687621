// The page of one session, with a tab for each of its parts.

import { useSignal } from "@preact/signals";
import type { ComponentType } from "preact";
import { useRef } from "preact/hooks";
import { useLocation, useRoute } from "preact-iso/router";

import { ApiError, apiPath, get, remove } from "../api/client";
import type { SessionState, SessionView } from "../api/schemas";
import { hasScope } from "../auth/account";
import { lazy } from "../components/error_boundary";
import { Fact } from "../components/facts";
import { ConfirmDialog } from "../components/form_dialog";
import { notify } from "../components/notifications";
import { RequestView, useReloadOnEvents, useRequest } from "../components/request";
import { Tabs } from "../components/tabs";
import { useTitle } from "../components/use_title";
import { escapeName, escapeText } from "../lib/escape";
import { formatCountdown, formatDateTime, formatDuration, secondsUntil } from "../lib/format";
import { hasCountdown, isHibernated, isPaused } from "../lib/session_state";
import { ForkDialog } from "./fork_dialog";
import { endsAt, PauseButton, PausedFor, PausedNotice } from "./pausing";
import { ProlongDialog } from "./prolong_dialog";
import { SnapshotDialog } from "./snapshot_dialog";

export interface TabProps {
    session: SessionView;
    /** Loads the session again, after something about it was changed. */
    reload: () => Promise<void>;
}

interface SessionTab {
    id: string;
    label: string;
    component: ComponentType<TabProps>;
    scope?: string;
    /** It is shown after the session has ended, too. */
    afterEnd?: boolean;
    /** Looking at it uses the session, which would resume it. */
    uses?: boolean;
    /** It may have changes that are not saved, so it stays if it was open before the session was paused. */
    keepsChanges?: boolean;
    /** It shows the sandbox, which a hibernated session does not have. */
    ofSandbox?: boolean;
}

const TABS: readonly SessionTab[] = [
    {
        id: "terminal",
        label: "Terminal",
        scope: "exec",
        uses: true,
        component: lazy(() => import("../terminal/terminals").then((module) => module.TerminalsTab)),
    },
    {
        id: "files",
        label: "Files",
        scope: "files",
        uses: true,
        keepsChanges: true,
        component: lazy(() => import("../session/files").then((module) => module.FilesTab)),
    },
    {
        id: "processes",
        label: "Processes",
        uses: true,
        component: lazy(() => import("../session/processes").then((module) => module.ProcessesTab)),
    },
    {
        id: "code",
        label: "Code",
        uses: true,
        component: lazy(() => import("../session/code").then((module) => module.CodeTab)),
    },
    {
        id: "ports",
        label: "Ports",
        uses: true,
        component: lazy(() => import("../session/ports").then((module) => module.PortsTab)),
    },
    {
        id: "network",
        label: "Network",
        component: lazy(() => import("../session/network").then((module) => module.NetworkTab)),
    },
    {
        id: "volumes",
        label: "Volumes",
        component: lazy(() => import("../session/volumes").then((module) => module.VolumesTab)),
    },
    {
        id: "artifacts",
        label: "Artifacts",
        afterEnd: true,
        scope: "files",
        component: lazy(() => import("../session/artifacts").then((module) => module.ArtifactsTab)),
    },
    {
        id: "figures",
        label: "Figures",
        ofSandbox: true,
        component: lazy(() => import("../session/metrics").then((module) => module.MetricsTab)),
    },
    {
        id: "logs",
        label: "Logs",
        afterEnd: true,
        component: lazy(() => import("../session/logs").then((module) => module.LogsTab)),
    },
    {
        id: "record",
        label: "Record",
        afterEnd: true,
        component: lazy(() => import("../session/activity").then((module) => module.ActivityTab)),
    },
    {
        id: "isolation",
        label: "Isolation",
        component: lazy(() => import("../session/isolation").then((module) => module.IsolationTab)),
    },
    {
        id: "details",
        label: "Details",
        afterEnd: true,
        component: lazy(() => import("../session/details").then((module) => module.DetailsTab)),
    },
];

const RELOAD_INTERVAL_MS = 10_000;
const END_REASONS: Record<string, string> = {
    deleted: "Somebody has ended it.",
    idle: "Nobody used it for as long as its idle time-out.",
    lifetime: "It has lived as long as it may.",
    paused_too_long: "It was paused for as long as it may.",
    replaced: "Its thread was given another session.",
    lost: "Its sandbox has died.",
    failed: "Its sandbox could not be made.",
    undone: "The server stopped while it was being made.",
    shutdown: "The server was shut down.",
};

export function SessionPage() {
    const { params, query } = useRoute();
    const { route } = useLocation();
    const id = params.id ?? "";
    const missingId = useSignal("");
    const loaded = useRequest(
        (signal) =>
            get<SessionView>(apiPath`/api/sessions/${id}`, {}, signal).catch((error) => {
                if (error instanceof ApiError && error.status === 404) missingId.value = id;
                throw error;
            }),
        [id],
        RELOAD_INTERVAL_MS,
    );
    const session = loaded.data.value;
    useTitle(session?.thread_id ? escapeName(session.thread_id) : id);
    useReloadOnEvents(loaded.reload, (event) => event.data.session_id === id, [id]);
    if (!session && missingId.value === id) {
        return (
            <section aria-labelledby="title">
                <h1 id="title">There is no such session</h1>
                <p class="note">
                    <span class="mono">{escapeName(id)}</span> has never been, is another tenant's, or ended so long ago
                    that it is forgotten.
                </p>
                <p>
                    <a href="/ui/sessions">All sessions</a>
                </p>
            </section>
        );
    }
    return (
        <section aria-labelledby="title">
            <RequestView request={loaded}>
                {(session) => {
                    const hasEnded =
                        session.state === "ended" || session.state === "lost" || session.state === "stopping";
                    const tabs = TABS.filter(
                        (tab) => (!hasEnded || tab.afterEnd) && (!tab.scope || hasScope(tab.scope)),
                    );
                    const tab = tabs.find((tab) => tab.id === query.tab) ?? tabs[0]!;
                    return (
                        <>
                            <SessionHeader session={session} reload={loaded.reload} />
                            {hasEnded && <EndNotice session={session} />}
                            <Tabs
                                label="Parts of the session"
                                tabs={tabs}
                                selected={tab.id}
                                onSelect={(name) => route(`/ui/sessions/${id}?tab=${name}`, true)}
                            >
                                <TabPanel tab={tab} session={session} reload={loaded.reload} />
                            </Tabs>
                        </>
                    );
                }}
            </RequestView>
        </section>
    );
}

/** A tab that uses the session is not rendered while that is paused. */
function TabPanel({ tab, session, reload }: TabProps & { tab: SessionTab }) {
    const wasOpen = useRef(false);
    const isStill = (tab.uses && isPaused(session.state)) || (tab.ofSandbox && isHibernated(session.state));
    const isShown = !isStill || (tab.keepsChanges && wasOpen.current);
    wasOpen.current ||= !isStill;
    return (
        <>
            {isStill && <PausedNotice session={session} onDone={reload} />}
            {isShown && <tab.component session={session} reload={reload} />}
        </>
    );
}

function SessionHeader({ session, reload }: TabProps) {
    const dialog = useSignal<"" | "end" | "prolong" | "fork" | "snapshot">("");
    const isRunning = session.state === "running";
    const close = () => (dialog.value = "");
    async function end() {
        await remove(apiPath`/api/sessions/${session.session_id}`);
        notify("The session has ended.");
        await reload();
    }
    return (
        <header class="session-head">
            <h1 id="title" title={session.thread_id ? escapeName(session.thread_id) : undefined}>
                {session.thread_id ? escapeName(session.thread_id) : <span class="mono">{session.session_id}</span>}
            </h1>
            <span role="status">
                <span class={`state ${session.state}`}>{session.state}</span>
            </span>
            <dl>
                {session.thread_id && (
                    <Fact name="Session" className="mono">
                        {session.session_id}
                    </Fact>
                )}
                <Fact name="Environment">{session.environment}</Fact>
                <Fact name="Age">
                    <time dateTime={session.created_at} title={formatDateTime(session.created_at)}>
                        {formatDuration(-secondsUntil(session.created_at))}
                    </time>
                </Fact>
                {session.paused_at && (
                    <Fact name="Paused for">
                        <PausedFor since={session.paused_at} />
                    </Fact>
                )}
                {hasCountdown(session.state) && session.expires_at && (
                    <Fact name={isRunning ? "Idle time left" : "Ends in"}>
                        <Countdown session={session} until={session.expires_at} />
                    </Fact>
                )}
            </dl>
            <span class="actions grow">
                {hasScope("sessions") && isRunning && (
                    <button type="button" class="plain" onClick={() => (dialog.value = "prolong")}>
                        Prolong
                    </button>
                )}
                <PauseButton session={session} onDone={reload} />
                {hasScope("sessions") && hasCountdown(session.state) && (
                    <>
                        <button type="button" class="plain" onClick={() => (dialog.value = "fork")}>
                            Fork
                        </button>
                        <button type="button" class="plain" onClick={() => (dialog.value = "snapshot")}>
                            Snapshot
                        </button>
                    </>
                )}
                {hasScope("sessions") && session.state !== "ended" && (
                    <button type="button" class="danger" onClick={() => (dialog.value = "end")}>
                        End
                    </button>
                )}
            </span>
            {dialog.value === "prolong" && <ProlongDialog session={session} onDone={reload} onClose={close} />}
            {dialog.value === "snapshot" && <SnapshotDialog session={session} onClose={close} />}
            {dialog.value === "fork" && <ForkDialog session={session} onClose={close} />}
            {dialog.value === "end" && (
                <ConfirmDialog title="End the session?" action="End the session" onConfirm={end} onClose={close}>
                    <p>Everything in it is destroyed: its files, and whatever runs.</p>
                </ConfirmDialog>
            )}
        </header>
    );
}

function Countdown({ session, until }: { session: SessionView; until: string }) {
    const left = Math.max(0, secondsUntil(until));
    return (
        <time dateTime={until} title={endsAt(session)} class={left < 60 ? "soon" : ""} role="timer">
            {formatCountdown(left)}
        </time>
    );
}

function EndNotice({ session }: { session: SessionView }) {
    const texts: Partial<Record<SessionState, string>> = {
        ended: "This session has ended.",
        lost: "The sandbox of this session is lost.",
        stopping: "This session is ending.",
    };
    return (
        <div class="card" role="status">
            <p>
                <b>{texts[session.state]}</b> {END_REASONS[session.reason ?? ""] ?? session.reason}{" "}
                {session.detail && <span class="note">{escapeText(session.detail)}</span>}
            </p>
            {session.state === "lost" && (
                <p class="note">Its files are gone. End it to free its place, or create another.</p>
            )}
            <p>
                <a href="/ui/sessions">All sessions</a>
            </p>
        </div>
    );
}
