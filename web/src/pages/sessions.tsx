// The sessions that there are, as they come and go.

import { type Signal, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { useLocation } from "preact-iso/router";

import { account, facts, may } from "../account";
import { address, get, path, remove } from "../api";
import { listen } from "../live";
import { Confirm } from "../parts/confirm";
import { gathered } from "../parts/gathered";
import { Shown, useLoaded } from "../parts/load";
import { tell } from "../parts/messages";
import { Meter } from "../parts/meter";
import { type Column, Table } from "../parts/table";
import { useTitle } from "../parts/title";
import { bytes, duration, fullTime, secondsUntil } from "../parts/units";
import { legible } from "../parts/visible";
import type { Environment, FigureLimits, Figures, Session, SessionPage } from "../types";
import { CreateSession } from "./create_session";
import { Prolong } from "./prolong";
import { Filters } from "./session_filters";

const PAGE = 50;
const FIGURES_MS = 10_000;
const LIST_MS = 60_000; // idle times change without an event
const OTHERS_MS = 10_000; // and the events are those of one's own tenant

type Shares = Record<string, { limits: FigureLimits; now: Figures }>;
type Asked = { what: "end" | "prolong"; session: Session } | { what: "create" };

export function SessionsPage() {
    useTitle("Sessions");
    const { query, route } = useLocation();
    const chosen = {
        state: query.state,
        environment: query.environment,
        provider: query.provider,
        worker: query.worker,
        of: query.of,
        search: query.search,
    };
    const place = JSON.stringify(query);
    const page = useLoaded(
        (signal) => get<SessionPage>("/api/sessions", { ...chosen, after: query.after, limit: PAGE }, signal),
        [place],
        query.of ? OTHERS_MS : LIST_MS,
    );
    const environments = useLoaded(
        (signal) => get<{ environments: Environment[] }>("/api/environments", {}, signal),
        [],
    );
    const shares = useShares(page.value.value, query.of ?? "");
    const asked = useSignal<Asked | null>(null);
    const newer = useRef<string[]>([]); // where the pages before this one begin
    useEffect(() => {
        const refresh = gathered(page.again);
        const stop = listen((event) => (event.kind === "gap" || event.kind.startsWith("session.")) && refresh.ask());
        return () => {
            stop();
            refresh.stop();
        };
    }, [place]);

    function show(changes: Record<string, string>) {
        // Of the address as it is now: a search that was typed a moment ago may come after another choice.
        const shown = Object.fromEntries(new URLSearchParams(location.search));
        route(address("/ui/sessions", { ...shown, after: "", ...changes }), true);
        newer.current = [];
    }
    const close = () => (asked.value = null);
    async function end(session: Session) {
        await remove(path`/api/sessions/${session.session_id}`);
        tell("The session has ended.");
        await page.again();
    }
    return (
        <section aria-labelledby="title">
            <div class="title">
                <h1 id="title">Sessions</h1>
                {may("sessions") && (
                    <button type="button" onClick={() => (asked.value = { what: "create" })}>
                        New session
                    </button>
                )}
            </div>
            <Filters
                chosen={chosen}
                onChange={show}
                environments={environments.value.value?.environments ?? []}
                sessions={page.value.value?.sessions ?? []}
            />
            <Shown of={page}>
                {({ sessions, next }) => (
                    <>
                        <Table
                            label="Sessions"
                            look="sessions"
                            rows={sessions}
                            keyOf={(session) => session.session_id}
                            empty={
                                Object.values(query).some(Boolean)
                                    ? "No session is like that."
                                    : `There is no session.${may("sessions") ? " The first command of a thread makes one, and so does the button above." : ""}`
                            }
                            columns={columns(shares, asked, query.of ?? "")}
                        />
                        <nav class="row" aria-label="Pages of sessions">
                            {query.after && (
                                <a
                                    class="button plain"
                                    href={address("/ui/sessions", chosen)}
                                    onClick={() => (newer.current = [])}
                                >
                                    Newest
                                </a>
                            )}
                            {newer.current.length > 1 && (
                                <a
                                    class="button plain"
                                    href={address("/ui/sessions", { ...chosen, after: newer.current.at(-1) })}
                                    onClick={() => newer.current.pop()}
                                >
                                    Newer
                                </a>
                            )}
                            {next && (
                                <a
                                    class="button plain"
                                    href={address("/ui/sessions", { ...chosen, after: next })}
                                    onClick={() => newer.current.push(query.after ?? "")}
                                >
                                    Older
                                </a>
                            )}
                        </nav>
                    </>
                )}
            </Shown>
            {asked.value?.what === "create" && (
                <CreateSession environments={environments.value.value?.environments ?? []} onClose={close} />
            )}
            {asked.value?.what === "prolong" && (
                <Prolong session={asked.value.session} onDone={page.again} onClose={close} />
            )}
            {asked.value?.what === "end" && (
                <Confirm
                    title="End the session?"
                    action="End the session"
                    onConfirm={() => end((asked.value as { session: Session }).session)}
                    onClose={close}
                >
                    <p>
                        <Name of={asked.value.session} /> is destroyed, with its files and whatever runs in it.
                    </p>
                </Confirm>
            )}
        </section>
    );
}

/** What the sessions of the page use, if they run. */
function useShares(page: SessionPage | null, of: string): Signal<Shares | null> {
    const ids = (page?.sessions ?? [])
        .filter((one) => one.state === "running")
        .map((one) => one.session_id)
        .join(",");
    return useLoaded(
        async (signal) =>
            ids ? (await get<{ metrics: Shares }>("/api/metrics", { session_ids: ids, of }, signal)).metrics : {},
        [ids, of],
        FIGURES_MS,
    ).value;
}

function columns(shares: Signal<Shares | null>, asked: Signal<Asked | null>, of: string): readonly Column<Session>[] {
    const isMine = (one: Session) => one.tenant === undefined || one.tenant === account.value?.tenant;
    const all: (Column<Session> | false)[] = [
        { name: "Session", show: (one) => <SessionLink session={one} isMine={isMine(one)} /> },
        of !== "" && { name: "Tenant", show: (one) => one.tenant },
        { name: "State", show: (one) => <State session={one} /> },
        {
            name: "Environment",
            show: (one) => (
                <>
                    {one.environment}
                    <small>{one.image ?? ""}</small>
                </>
            ),
        },
        {
            name: "Provider",
            show: (one) => (
                <>
                    {one.provider ?? ""}
                    {facts.value?.cluster && <small>{one.worker ?? ""}</small>}
                </>
            ),
        },
        { name: "Age", right: true, show: (one) => <Since time={one.created_at} /> },
        { name: "Idle time left", right: true, show: (one) => <Left session={one} /> },
        {
            name: "CPU",
            right: true,
            show: (one) => (
                <Share
                    of={shares}
                    session={one}
                    part={(use) => use.cpus}
                    whole={(limits) => limits.cpus}
                    text={(value) => `${Math.round(100 * value)} %`}
                />
            ),
        },
        {
            name: "Memory",
            right: true,
            show: (one) => (
                <Share
                    of={shares}
                    session={one}
                    part={(use) => use.memory_bytes}
                    whole={(limits) => limits.memory_bytes}
                    text={bytes}
                />
            ),
        },
        {
            name: "Disk",
            right: true,
            show: (one) => (
                <Share
                    of={shares}
                    session={one}
                    part={(use) => use.disk_bytes}
                    whole={(limits) => limits.disk_bytes}
                    text={bytes}
                />
            ),
        },
        may("sessions") && {
            name: "Actions",
            show: (one) =>
                isMine(one) &&
                one.state !== "ended" && (
                    <span class="actions">
                        {one.state === "running" && (
                            <button
                                type="button"
                                class="plain small"
                                aria-label={`Prolong ${one.session_id}`}
                                onClick={() => (asked.value = { what: "prolong", session: one })}
                            >
                                Prolong
                            </button>
                        )}
                        <button
                            type="button"
                            class="danger small"
                            aria-label={`End ${one.session_id}`}
                            onClick={() => (asked.value = { what: "end", session: one })}
                        >
                            End
                        </button>
                    </span>
                ),
        },
    ];
    return all.filter((column) => column !== false);
}

function Name({ of }: { of: Session }) {
    return of.thread_id ? (
        <>
            The session of the thread <b>{of.thread_id}</b>
        </>
    ) : (
        <>
            The session <b class="mono">{of.session_id}</b>
        </>
    );
}

function SessionLink({ session, isMine }: { session: Session; isMine: boolean }) {
    const name = (
        <>
            <span class="name">{session.thread_id ?? "no thread"}</span>
            <small class="mono">{session.session_id}</small>
        </>
    );
    const notes = Object.entries(session.metadata)
        .map(([key, value]) => legible(`${key}=${value}`))
        .join("  ");
    return (
        <span class="named" title={[session.thread_id, notes].filter(Boolean).join("\n") || undefined}>
            {isMine ? <a href={`/ui/sessions/${encodeURIComponent(session.session_id)}`}>{name}</a> : name}
            {notes && <small class="notes">{notes}</small>}
        </span>
    );
}

function State({ session }: { session: Session }) {
    return (
        <>
            <span class={`state ${session.state}`} title={session.detail ?? undefined}>
                {session.state}
            </span>
            {session.reason && <small>{session.reason}</small>}
        </>
    );
}

function Since({ time }: { time: string }) {
    return (
        <time dateTime={time} title={fullTime(time)}>
            {duration(-secondsUntil(time))}
        </time>
    );
}

function Left({ session }: { session: Session }) {
    const until = session.expires_at;
    if (!until || session.state !== "running") return <>–</>;
    const left = secondsUntil(until);
    return (
        <time dateTime={until} title={`Ends at ${fullTime(until)} if it is not used`} class={left < 60 ? "soon" : ""}>
            {duration(left)}
        </time>
    );
}

interface ShareProps {
    of: Signal<Shares | null>;
    session: Session;
    part: (use: Figures) => number;
    whole: (limits: FigureLimits) => number;
    text: (value: number) => string;
}

function Share({ of, session, part, whole, text }: ShareProps) {
    const found = session.state === "running" ? of.value?.[session.session_id] : undefined;
    if (!found) return <>–</>;
    return <Meter value={part(found.now)} most={whole(found.limits)} text={text} />;
}
