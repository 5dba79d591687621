// One session: its terminals, files, code, network and figures, each in a tab of its own.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { useLocation, useRoute } from "preact-iso/router";

import { may } from "../account";
import { ApiError, get, path, remove } from "../api";
import { listen } from "../live";
import { lazy } from "../parts/boundary";
import { Confirm } from "../parts/confirm";
import { gathered } from "../parts/gathered";
import { Shown, useLoaded } from "../parts/load";
import { tell } from "../parts/messages";
import { Tabs } from "../parts/tabs";
import { useTitle } from "../parts/title";
import { duration, fullTime, secondsUntil } from "../parts/units";
import { legible, visible } from "../parts/visible";
import type { Session } from "../types";
import { Prolong } from "./prolong";

export interface TabProps {
    session: Session;
    /** Loads the session again, after something about it was changed. */
    again: () => Promise<void>;
}

interface SessionTab {
    id: string;
    label: string;
    component: (props: TabProps) => any;
    scope?: string;
    /** It has something to show when the session has ended. */
    outlives?: boolean;
}

const TABS: readonly SessionTab[] = [
    {
        id: "terminal",
        label: "Terminal",
        scope: "exec",
        component: lazy(() => import("../terminal/tab").then((module) => module.Terminals)),
    },
    {
        id: "files",
        label: "Files",
        scope: "files",
        component: lazy(() => import("../session/files").then((module) => module.Files)),
    },
    {
        id: "processes",
        label: "Processes",
        component: lazy(() => import("../session/processes").then((module) => module.Processes)),
    },
    { id: "code", label: "Code", component: lazy(() => import("../session/code").then((module) => module.Code)) },
    { id: "ports", label: "Ports", component: lazy(() => import("../session/ports").then((module) => module.Ports)) },
    {
        id: "network",
        label: "Network",
        component: lazy(() => import("../session/network").then((module) => module.Network)),
    },
    {
        id: "artifacts",
        label: "Artifacts",
        outlives: true,
        scope: "files",
        component: lazy(() => import("../session/artifacts").then((module) => module.Artifacts)),
    },
    {
        id: "figures",
        label: "Figures",
        component: lazy(() => import("../session/figures").then((module) => module.Figures)),
    },
    {
        id: "record",
        label: "Record",
        outlives: true,
        component: lazy(() => import("../session/record").then((module) => module.Record)),
    },
    {
        id: "isolation",
        label: "Isolation",
        component: lazy(() => import("../session/isolation").then((module) => module.Isolation)),
    },
    {
        id: "details",
        label: "Details",
        outlives: true,
        component: lazy(() => import("../session/details").then((module) => module.Details)),
    },
];

const AGAIN_MS = 10_000;
const REASONS: Record<string, string> = {
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
    const unknown = useSignal("");
    const loaded = useLoaded(
        (signal) =>
            get<Session>(path`/api/sessions/${id}`, {}, signal).catch((error) => {
                if (error instanceof ApiError && error.status === 404) unknown.value = id;
                throw error;
            }),
        [id],
        AGAIN_MS,
    );
    const session = loaded.value.value;
    useTitle(session?.thread_id ? visible(session.thread_id) : id);
    useEffect(() => {
        const refresh = gathered(loaded.again);
        const stop = listen((event) => (event.kind === "gap" || event.data?.session_id === id) && refresh.ask());
        return () => {
            stop();
            refresh.stop();
        };
    }, [id]);
    if (!session && unknown.value === id) {
        return (
            <section aria-labelledby="title">
                <h1 id="title">There is no such session</h1>
                <p class="note">
                    <span class="mono">{visible(id)}</span> has never been, is another tenant's, or ended so long ago
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
            <Shown of={loaded}>
                {(session) => {
                    const isOver =
                        session.state === "ended" || session.state === "lost" || session.state === "stopping";
                    const tabs = TABS.filter((one) => (!isOver || one.outlives) && (!one.scope || may(one.scope)));
                    const tab = tabs.find((one) => one.id === query.tab) ?? tabs[0]!;
                    return (
                        <>
                            <Head session={session} again={loaded.again} />
                            {isOver && <Ending session={session} />}
                            <Tabs
                                label="Parts of the session"
                                tabs={tabs}
                                chosen={tab.id}
                                onChoose={(name) => route(`/ui/sessions/${id}?tab=${name}`, true)}
                            >
                                <tab.component session={session} again={loaded.again} />
                            </Tabs>
                        </>
                    );
                }}
            </Shown>
        </section>
    );
}

function Head({ session, again }: TabProps) {
    const asked = useSignal<"" | "end" | "prolong">("");
    const isRunning = session.state === "running";
    const close = () => (asked.value = "");
    async function end() {
        await remove(path`/api/sessions/${session.session_id}`);
        tell("The session has ended.");
        await again();
    }
    return (
        <header class="session-head">
            <h1 id="title" title={session.thread_id ? visible(session.thread_id) : undefined}>
                {session.thread_id ? visible(session.thread_id) : <span class="mono">{session.session_id}</span>}
            </h1>
            <span role="status">
                <span class={`state ${session.state}`}>{session.state}</span>
            </span>
            <dl>
                {session.thread_id && (
                    <div>
                        <dt>Session</dt>
                        <dd class="mono">{session.session_id}</dd>
                    </div>
                )}
                <div>
                    <dt>Environment</dt>
                    <dd>{session.environment}</dd>
                </div>
                <div>
                    <dt>Age</dt>
                    <dd>
                        <time dateTime={session.created_at} title={fullTime(session.created_at)}>
                            {duration(-secondsUntil(session.created_at))}
                        </time>
                    </dd>
                </div>
                {isRunning && session.expires_at && (
                    <div>
                        <dt>Idle time left</dt>
                        <dd>
                            <Left until={session.expires_at} />
                        </dd>
                    </div>
                )}
            </dl>
            <span class="grow" />
            {may("sessions") && isRunning && (
                <button type="button" class="plain" onClick={() => (asked.value = "prolong")}>
                    Prolong
                </button>
            )}
            {may("sessions") && session.state !== "ended" && (
                <button type="button" class="danger" onClick={() => (asked.value = "end")}>
                    End
                </button>
            )}
            {asked.value === "prolong" && <Prolong session={session} onDone={again} onClose={close} />}
            {asked.value === "end" && (
                <Confirm title="End the session?" action="End the session" onConfirm={end} onClose={close}>
                    <p>Everything in it is destroyed: its files, and whatever runs.</p>
                </Confirm>
            )}
        </header>
    );
}

/** Counts down every second. */
function Left({ until }: { until: string }) {
    const left = Math.max(0, secondsUntil(until));
    const shown =
        left >= 3600 ? duration(left) : `${Math.floor(left / 60)}:${String(Math.floor(left % 60)).padStart(2, "0")}`;
    return (
        <time
            dateTime={until}
            title={`Ends at ${fullTime(until)} if it is not used`}
            class={left < 60 ? "soon" : ""}
            role="timer"
        >
            {shown}
        </time>
    );
}

function Ending({ session }: { session: Session }) {
    const what = {
        ended: "This session has ended.",
        lost: "The sandbox of this session is lost.",
        stopping: "This session is ending.",
    }[session.state];
    return (
        <div class="card" role="status">
            <p>
                <b>{what}</b> {REASONS[session.reason ?? ""] ?? session.reason}{" "}
                {session.detail && <span class="note">{legible(session.detail)}</span>}
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
