// The list of sessions, updated as they come and go.

import { type Signal, useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { useLocation } from "preact-iso/router";

import { apiPath, buildUrl, get, remove } from "../api/client";
import type { EnvironmentList, FigureLimitsView, FiguresPage, SessionPage, SessionView } from "../api/schemas";
import { account, hasScope, serverInfo } from "../auth/account";
import { ConfirmDialog } from "../components/form_dialog";
import { Meter } from "../components/meter";
import { notify } from "../components/notifications";
import { RequestView, useReloadOnEvents, useRequest } from "../components/request";
import { type Column, Table } from "../components/table";
import { useTitle } from "../components/use_title";
import { escapeText } from "../lib/escape";
import { formatBytes, formatDateTime, formatDuration, secondsUntil } from "../lib/format";
import { hasCountdown } from "../lib/session_state";
import { CreateSessionDialog } from "./create_session_dialog";
import { endsAt, PauseButton, PausedFor } from "./pausing";
import { ProlongDialog } from "./prolong_dialog";
import { SessionFilters } from "./session_filters";

const PAGE_SIZE = 50;
const METRICS_INTERVAL_MS = 10_000;
const LIST_INTERVAL_MS = 60_000; // idle times change without an event
const OTHER_TENANTS_INTERVAL_MS = 10_000; // their events do not come to this page

type MetricsBySession = FiguresPage["metrics"];
type OpenDialog = { kind: "end" | "prolong"; session: SessionView } | { kind: "create" };

export function SessionsPage() {
    useTitle("Sessions");
    const { query, route } = useLocation();
    const filters = {
        state: query.state,
        environment: query.environment,
        provider: query.provider,
        worker: query.worker,
        of: query.of,
        search: query.search,
    };
    const queryKey = JSON.stringify(query);
    const page = useRequest(
        (signal) => get<SessionPage>("/api/sessions", { ...filters, after: query.after, limit: PAGE_SIZE }, signal),
        [queryKey],
        query.of ? OTHER_TENANTS_INTERVAL_MS : LIST_INTERVAL_MS,
    );
    const environments = useRequest((signal) => get<EnvironmentList>("/api/environments", {}, signal), []);
    const metrics = useSessionMetrics(page.data.value, query.of ?? "");
    const dialog = useSignal<OpenDialog | null>(null);
    const newerCursors = useRef<string[]>([]); // of the pages before this one
    useReloadOnEvents(page.reload, (event) => event.kind.startsWith("session."), [queryKey]);

    function changeFilters(changes: Record<string, string>) {
        // Starts from the current address: another filter may have changed while this one was typed.
        const current = Object.fromEntries(new URLSearchParams(location.search));
        route(buildUrl("/ui/sessions", { ...current, after: "", ...changes }), true);
        newerCursors.current = [];
    }
    const close = () => (dialog.value = null);
    async function end(session: SessionView) {
        await remove(apiPath`/api/sessions/${session.session_id}`);
        notify("The session has ended.");
        await page.reload();
    }
    return (
        <section aria-labelledby="title">
            <div class="title">
                <h1 id="title">Sessions</h1>
                {hasScope("sessions") && (
                    <button type="button" onClick={() => (dialog.value = { kind: "create" })}>
                        New session
                    </button>
                )}
            </div>
            <SessionFilters
                filters={filters}
                onChange={changeFilters}
                environments={environments.data.value?.environments ?? []}
                sessions={page.data.value?.sessions ?? []}
            />
            <RequestView request={page}>
                {({ sessions, next }) => (
                    <>
                        <Table
                            label="Sessions"
                            className="sessions"
                            rows={sessions}
                            keyOf={(session) => session.session_id}
                            empty={
                                Object.values(query).some(Boolean)
                                    ? "No session is like that."
                                    : `There is no session.${hasScope("sessions") ? " The first command of a thread makes session, and so does the button above." : ""}`
                            }
                            columns={columns(metrics, dialog, page.reload, query.of ?? "")}
                        />
                        <nav class="row" aria-label="Pages of sessions">
                            {query.after && (
                                <a
                                    class="button plain"
                                    href={buildUrl("/ui/sessions", filters)}
                                    onClick={() => (newerCursors.current = [])}
                                >
                                    Newest
                                </a>
                            )}
                            {newerCursors.current.length > 1 && (
                                <a
                                    class="button plain"
                                    href={buildUrl("/ui/sessions", { ...filters, after: newerCursors.current.at(-1) })}
                                    onClick={() => newerCursors.current.pop()}
                                >
                                    Newer
                                </a>
                            )}
                            {next && (
                                <a
                                    class="button plain"
                                    href={buildUrl("/ui/sessions", { ...filters, after: next })}
                                    onClick={() => newerCursors.current.push(query.after ?? "")}
                                >
                                    Older
                                </a>
                            )}
                        </nav>
                    </>
                )}
            </RequestView>
            {dialog.value?.kind === "create" && (
                <CreateSessionDialog environments={environments.data.value?.environments ?? []} onClose={close} />
            )}
            {dialog.value?.kind === "prolong" && (
                <ProlongDialog session={dialog.value.session} onDone={page.reload} onClose={close} />
            )}
            {dialog.value?.kind === "end" && (
                <ConfirmDialog
                    title="End the session?"
                    action="End the session"
                    onConfirm={() => end((dialog.value as { session: SessionView }).session)}
                    onClose={close}
                >
                    <p>
                        <SessionName session={dialog.value.session} /> is destroyed, with its files and whatever runs in
                        it.
                    </p>
                </ConfirmDialog>
            )}
        </section>
    );
}

/** Loads the metrics of the sessions of a page that have a sandbox. */
function useSessionMetrics(page: SessionPage | null, of: string): Signal<MetricsBySession | null> {
    const ids = (page?.sessions ?? [])
        .filter(hasSandbox)
        .map((session) => session.session_id)
        .join(",");
    return useRequest(
        async (signal) =>
            ids ? (await get<FiguresPage>("/api/metrics", { session_ids: ids, of }, signal)).metrics : {},
        [ids, of],
        METRICS_INTERVAL_MS,
    ).data;
}

const hasSandbox = ({ state }: SessionView): boolean => state === "running" || state === "paused";

function columns(
    metrics: Signal<MetricsBySession | null>,
    dialog: Signal<OpenDialog | null>,
    reload: () => Promise<void>,
    of: string,
): readonly Column<SessionView>[] {
    const isMine = (session: SessionView) => session.tenant === account.value?.tenant;
    const all: (Column<SessionView> | false)[] = [
        { name: "Session", render: (session) => <SessionLink session={session} isMine={isMine(session)} /> },
        of !== "" && { name: "Tenant", render: (session) => session.tenant },
        { name: "State", render: (session) => <StateCell session={session} /> },
        {
            name: "Environment",
            render: (session) => (
                <>
                    {session.environment}
                    <small>{session.image ?? ""}</small>
                </>
            ),
        },
        {
            name: "Provider",
            render: (session) => (
                <>
                    {session.provider ?? ""}
                    {serverInfo.value?.cluster && <small>{session.worker ?? ""}</small>}
                </>
            ),
        },
        { name: "Age", right: true, render: (session) => <Age time={session.created_at} /> },
        { name: "Time left", right: true, render: (session) => <TimeLeft session={session} /> },
        {
            name: "CPU",
            right: true,
            render: (session) => (
                <UsageMeter
                    metrics={metrics}
                    session={session}
                    field="cpus"
                    format={(value) => `${Math.round(100 * value)} %`}
                />
            ),
        },
        {
            name: "Memory",
            right: true,
            render: (session) => (
                <UsageMeter metrics={metrics} session={session} field="memory_bytes" format={formatBytes} />
            ),
        },
        {
            name: "Disk",
            right: true,
            render: (session) => (
                <UsageMeter metrics={metrics} session={session} field="disk_bytes" format={formatBytes} />
            ),
        },
        hasScope("sessions") && {
            name: "Actions",
            render: (session) =>
                isMine(session) &&
                session.state !== "ended" && (
                    <span class="actions">
                        {session.state === "running" && (
                            <button
                                type="button"
                                class="plain small"
                                aria-label={`Prolong ${session.session_id}`}
                                onClick={() => (dialog.value = { kind: "prolong", session: session })}
                            >
                                Prolong
                            </button>
                        )}
                        <PauseButton
                            session={session}
                            onDone={reload}
                            className="plain small"
                            of={session.session_id}
                        />
                        <button
                            type="button"
                            class="danger small"
                            aria-label={`End ${session.session_id}`}
                            onClick={() => (dialog.value = { kind: "end", session: session })}
                        >
                            End
                        </button>
                    </span>
                ),
        },
    ];
    return all.filter((column) => column !== false);
}

function SessionName({ session }: { session: SessionView }) {
    return session.thread_id ? (
        <>
            The session of the thread <b>{session.thread_id}</b>
        </>
    ) : (
        <>
            The session <b class="mono">{session.session_id}</b>
        </>
    );
}

function SessionLink({ session, isMine }: { session: SessionView; isMine: boolean }) {
    const name = (
        <>
            <span class="name">{session.thread_id ?? "no thread"}</span>
            <small class="mono">{session.session_id}</small>
        </>
    );
    const notes = Object.entries(session.metadata)
        .map(([key, value]) => escapeText(`${key}=${value}`))
        .join("  ");
    return (
        <span class="named" title={[session.thread_id, notes].filter(Boolean).join("\n") || undefined}>
            {isMine ? <a href={`/ui/sessions/${encodeURIComponent(session.session_id)}`}>{name}</a> : name}
            {notes && <small class="notes">{notes}</small>}
        </span>
    );
}

function StateCell({ session }: { session: SessionView }) {
    return (
        <>
            <span class={`state ${session.state}`} title={session.detail ?? undefined}>
                {session.state}
            </span>
            {session.reason && <small>{session.reason}</small>}
            {session.paused_at && (
                <small>
                    for <PausedFor since={session.paused_at} />
                </small>
            )}
        </>
    );
}

function Age({ time }: { time: string }) {
    return (
        <time dateTime={time} title={formatDateTime(time)}>
            {formatDuration(-secondsUntil(time))}
        </time>
    );
}

function TimeLeft({ session }: { session: SessionView }) {
    const until = session.expires_at;
    if (!until || !hasCountdown(session.state)) return <>–</>;
    const left = secondsUntil(until);
    return (
        <time dateTime={until} title={endsAt(session)} class={left < 60 ? "soon" : ""}>
            {formatDuration(left)}
        </time>
    );
}

interface UsageMeterProps {
    metrics: Signal<MetricsBySession | null>;
    session: SessionView;
    field: keyof FigureLimitsView;
    format: (value: number) => string;
}

function UsageMeter({ metrics, session, field, format }: UsageMeterProps) {
    const latest = hasSandbox(session) ? metrics.value?.[session.session_id] : undefined;
    if (!latest) return <>–</>;
    return <Meter value={latest.now[field]} max={latest.limits[field]} format={format} />;
}
