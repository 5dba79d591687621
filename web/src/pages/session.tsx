// The page of one session, with a tab for each of its parts.

import { useSignal } from "@preact/signals";
import type { ComponentType } from "preact";
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
import { ProlongDialog } from "./prolong_dialog";

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
}

const TABS: readonly SessionTab[] = [
    {
        id: "terminal",
        label: "Terminal",
        scope: "exec",
        component: lazy(() => import("../terminal/terminals").then((module) => module.TerminalsTab)),
    },
    {
        id: "files",
        label: "Files",
        scope: "files",
        component: lazy(() => import("../session/files").then((module) => module.FilesTab)),
    },
    {
        id: "processes",
        label: "Processes",
        component: lazy(() => import("../session/processes").then((module) => module.ProcessesTab)),
    },
    { id: "code", label: "Code", component: lazy(() => import("../session/code").then((module) => module.CodeTab)) },
    {
        id: "ports",
        label: "Ports",
        component: lazy(() => import("../session/ports").then((module) => module.PortsTab)),
    },
    {
        id: "network",
        label: "Network",
        component: lazy(() => import("../session/network").then((module) => module.NetworkTab)),
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
        component: lazy(() => import("../session/metrics").then((module) => module.MetricsTab)),
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
                                <tab.component session={session} reload={loaded.reload} />
                            </Tabs>
                        </>
                    );
                }}
            </RequestView>
        </section>
    );
}

function SessionHeader({ session, reload }: TabProps) {
    const dialog = useSignal<"" | "end" | "prolong">("");
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
                {isRunning && session.expires_at && (
                    <Fact name="Idle time left">
                        <Countdown until={session.expires_at} />
                    </Fact>
                )}
            </dl>
            <span class="grow" />
            {hasScope("sessions") && isRunning && (
                <button type="button" class="plain" onClick={() => (dialog.value = "prolong")}>
                    Prolong
                </button>
            )}
            {hasScope("sessions") && session.state !== "ended" && (
                <button type="button" class="danger" onClick={() => (dialog.value = "end")}>
                    End
                </button>
            )}
            {dialog.value === "prolong" && <ProlongDialog session={session} onDone={reload} onClose={close} />}
            {dialog.value === "end" && (
                <ConfirmDialog title="End the session?" action="End the session" onConfirm={end} onClose={close}>
                    <p>Everything in it is destroyed: its files, and whatever runs.</p>
                </ConfirmDialog>
            )}
        </header>
    );
}

function Countdown({ until }: { until: string }) {
    const left = Math.max(0, secondsUntil(until));
    return (
        <time
            dateTime={until}
            title={`Ends at ${formatDateTime(until)} if it is not used`}
            class={left < 60 ? "soon" : ""}
            role="timer"
        >
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
