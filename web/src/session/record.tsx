// What happens to the session, as it happens, and what was done with it: the audit record.

import { type Signal, signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

import { get } from "../api";
import { listen } from "../live";
import type { TabProps } from "../pages/session";
import { DeedTable, describeValues, type Page, unique } from "../parts/deeds";
import { Shown, useLoaded } from "../parts/load";
import { attempt } from "../parts/messages";
import { Table } from "../parts/table";
import { shortTime } from "../parts/units";

interface Happened {
    id: string;
    type: string;
    timestamp: string;
    session_id: string;
    data: Record<string, unknown>;
}

const EVERY_MS = 10_000;
const MOST_EVENTS = 200;
const MOST_SESSIONS = 20;
const LOOKS = /^(get|list|read|stat|watch|search|resolve|wait|follow|events|artifact_get)(_|$)/;
const ACTIONS = [
    "run_command",
    "run_code",
    "start_process",
    "terminal_socket",
    "kill_process",
    "write_file",
    "read_file",
    "remove_file",
    "write_archive",
    "save_artifacts",
    "set_network",
    "network.connection",
    "network.refused",
    "create_link",
    "change_session",
    "create_session",
    "session.expired",
    "session.lost",
    "resource.high",
];

/** Events that this page has seen, by session; they stay while the page does. */
const seen = new Map<string, Signal<Happened[]>>();

function eventsOf(id: string): Signal<Happened[]> {
    let events = seen.get(id);
    if (!events) {
        if (seen.size >= MOST_SESSIONS) seen.delete(seen.keys().next().value!);
        seen.set(id, (events = signal<Happened[]>([])));
    }
    return events;
}

export function Record({ session }: TabProps) {
    const id = session.session_id;
    const events = eventsOf(id);
    useEffect(
        () =>
            listen((event) => {
                if (event.data?.session_id !== id || events.value.some((one) => one.id === event.data.id)) return;
                events.value = [event.data as Happened, ...events.value].slice(0, MOST_EVENTS);
            }),
        [id],
    );
    return (
        <>
            <section aria-labelledby="events">
                <h2 id="events">Events</h2>
                <div role="log" aria-label="Events of this session">
                    <Table
                        label="Events"
                        rows={events.value}
                        keyOf={(one) => one.id}
                        empty="Nothing has happened since this page was opened."
                        columns={[
                            { name: "Time", show: (one) => <span class="nowrap">{shortTime(one.timestamp)}</span> },
                            { name: "Event", show: (one) => <span class={`state ${mood(one.type)}`}>{one.type}</span> },
                            { name: "What", show: (one) => describeValues(one.data) },
                        ]}
                    />
                </div>
            </section>
            <Deeds id={id} />
        </>
    );
}

function mood(type: string): string {
    if (/refused|left_out|high|reached/.test(type)) return "warn";
    return /lost|expired/.test(type) ? "lost" : "";
}

function Deeds({ id }: { id: string }) {
    const action = useSignal("");
    const looks = useSignal(false);
    const older = useSignal<Page | null>(null);
    const query = (after = "") => ({ session_id: id, action: action.value, limit: 100, after });
    const loaded = useLoaded((signal) => get<Page>("/api/audit", query(), signal), [id, action.value], EVERY_MS);
    const more = (after: string) =>
        attempt(async () => {
            const page = await get<Page>("/api/audit", query(after));
            older.value = { deeds: [...(older.value?.deeds ?? []), ...page.deeds], next: page.next };
        });
    return (
        <section aria-labelledby="deeds">
            <h2 id="deeds">Audit record</h2>
            <div class="row">
                <label>
                    Action
                    <select
                        value={action.value}
                        onChange={(event) => {
                            action.value = event.currentTarget.value;
                            older.value = null;
                        }}
                    >
                        <option value="">All actions</option>
                        {ACTIONS.map((one) => (
                            <option key={one} value={one}>
                                {one}
                            </option>
                        ))}
                    </select>
                </label>
                <label class="inline">
                    <input
                        type="checkbox"
                        checked={looks.value}
                        onChange={(event) => (looks.value = event.currentTarget.checked)}
                    />
                    Also what only looks
                </label>
            </div>
            <Shown of={loaded}>
                {(page) => {
                    const all = unique([...page.deeds, ...(older.value?.deeds ?? [])]);
                    const rows = looks.value || action.value ? all : all.filter((deed) => !LOOKS.test(deed.action));
                    const next = older.value ? older.value.next : page.next;
                    return (
                        <>
                            <DeedTable deeds={rows} empty="Nothing was done, as far as this page shows." />
                            {next && (
                                <button type="button" class="plain" onClick={() => more(next)}>
                                    Older
                                </button>
                            )}
                        </>
                    );
                }}
            </Shown>
        </section>
    );
}
