// The events of a session as they arrive, and its audit record.

import { type Signal, signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

import { get } from "../api/client";
import type { DeedPage } from "../api/schemas";
import { subscribe } from "../api/server_events";
import { AuditTable, uniqueEntries } from "../components/audit_table";
import { CheckboxField, SelectField } from "../components/fields";
import { runAction } from "../components/notifications";
import { RequestView, useRequest } from "../components/request";
import { Table } from "../components/table";
import { formatDetails, formatTime } from "../lib/format";
import type { TabProps } from "../pages/session";

interface SessionEvent {
    id: string;
    type: string;
    timestamp: string;
    session_id: string;
    data: Record<string, unknown>;
}

const INTERVAL_MS = 10_000;
const MAX_EVENTS = 200;
const MAX_SESSIONS = 20;
const READ_ACTIONS = /^(get|list|read|stat|watch|search|resolve|wait|follow|events|artifact_get)(_|$)/;
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
    "pause_session",
    "resume_session",
    "fork_session",
    "create_snapshot",
    "attach_volume",
    "detach_volume",
    "delete_logs",
    "change_session",
    "create_session",
    "session.expired",
    "session.lost",
    "resource.high",
];

/** The events that arrived since the page was opened, by session. They survive a change of tabs. */
const eventsBySession = new Map<string, Signal<SessionEvent[]>>();

function eventsOf(id: string): Signal<SessionEvent[]> {
    let events = eventsBySession.get(id);
    if (!events) {
        if (eventsBySession.size >= MAX_SESSIONS) eventsBySession.delete(eventsBySession.keys().next().value!);
        events = signal<SessionEvent[]>([]);
        eventsBySession.set(id, events);
    }
    return events;
}

export function ActivityTab({ session }: TabProps) {
    const id = session.session_id;
    const events = eventsOf(id);
    useEffect(
        () =>
            subscribe((event) => {
                if (event.data.session_id !== id || events.value.some(({ id }) => id === event.data.id)) return;
                events.value = [event.data as unknown as SessionEvent, ...events.value].slice(0, MAX_EVENTS);
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
                        keyOf={(event) => event.id}
                        empty="Nothing has happened since this page was opened."
                        columns={[
                            {
                                name: "Time",
                                render: (event) => <span class="nowrap">{formatTime(event.timestamp)}</span>,
                            },
                            {
                                name: "Event",
                                render: (event) => <span class={`state ${eventClass(event.type)}`}>{event.type}</span>,
                            },
                            { name: "What", render: (event) => formatDetails(event.data) },
                        ]}
                    />
                </div>
            </section>
            <SessionAudit id={id} />
        </>
    );
}

function eventClass(type: string): string {
    if (/refused|left_out|high|reached/.test(type)) return "warn";
    return /lost|expired/.test(type) ? "lost" : "";
}

function SessionAudit({ id }: { id: string }) {
    const action = useSignal("");
    const includeReads = useSignal(false);
    const older = useSignal<DeedPage | null>(null);
    const query = (after = "") => ({ session_id: id, action: action.value, limit: 100, after });
    const loaded = useRequest(
        (signal) => get<DeedPage>("/api/audit", query(), signal),
        [id, action.value],
        INTERVAL_MS,
    );
    const loadOlder = (after: string) =>
        runAction(async () => {
            const page = await get<DeedPage>("/api/audit", query(after));
            older.value = { deeds: [...(older.value?.deeds ?? []), ...page.deeds], next: page.next };
        });
    return (
        <section aria-labelledby="audit">
            <h2 id="audit">Audit record</h2>
            <div class="row">
                <SelectField
                    label="Action"
                    value={action.value}
                    options={[["", "All actions"], ...ACTIONS.map((name) => [name, name] as const)]}
                    onChange={(value) => {
                        action.value = value;
                        older.value = null;
                    }}
                />
                <CheckboxField
                    label="Also what only looks"
                    checked={includeReads.value}
                    onChange={(checked) => (includeReads.value = checked)}
                />
            </div>
            <RequestView request={loaded}>
                {(page) => {
                    const all = uniqueEntries([...page.deeds, ...(older.value?.deeds ?? [])]);
                    const rows =
                        includeReads.value || action.value
                            ? all
                            : all.filter((entry) => !READ_ACTIONS.test(entry.action));
                    const next = older.value ? older.value.next : page.next;
                    return (
                        <>
                            <AuditTable entries={rows} empty="Nothing was done, as far as this page shows." />
                            {next && (
                                <button type="button" class="plain" onClick={() => loadOlder(next)}>
                                    Older
                                </button>
                            )}
                        </>
                    );
                }}
            </RequestView>
        </section>
    );
}
