// Entries of the audit record, as a table.

import type { DeedView } from "../api/schemas";
import { escapeLines } from "../lib/escape";
import { formatDateTime, formatDetails, formatMilliseconds, formatTime } from "../lib/format";
import { Table } from "./table";

const RESULT_CLASSES: Record<string, string> = { ok: "ok", allowed: "ok", more: "warn", left: "warn" };

interface Props {
    entries: readonly DeedView[];
    empty: string;
    withTenant?: boolean;
}

export function AuditTable({ entries, empty, withTenant = false }: Props) {
    return (
        <Table
            label="Audit record"
            rows={entries}
            keyOf={keyOf}
            empty={empty}
            columns={[
                {
                    name: "Time",
                    render: (entry) => (
                        <span class="nowrap" title={formatDateTime(entry.at)}>
                            {withTenant ? formatDateTime(entry.at) : formatTime(entry.at)}
                        </span>
                    ),
                },
                ...(withTenant ? [{ name: "Tenant", render: (entry: DeedView) => entry.tenant }] : []),
                { name: "Action", render: (entry) => <span class="nowrap">{entry.action}</span> },
                {
                    name: "Result",
                    render: ({ result }) =>
                        result && <span class={`state ${RESULT_CLASSES[result] ?? "refused"}`}>{result}</span>,
                },
                { name: "What", render: (entry) => <ActionDetail detail={entry.detail} /> },
                { name: "Exit code", render: (entry) => String(entry.detail.exit_code ?? ""), right: true },
                {
                    name: "Took",
                    render: ({ duration_ms }) => (
                        <span class="nowrap">{duration_ms === 0 ? "" : formatMilliseconds(duration_ms)}</span>
                    ),
                    right: true,
                },
                {
                    name: "Who",
                    render: (entry) => (
                        <span class="nowrap">{[entry.key_id, entry.client].filter(Boolean).join(" ")}</span>
                    ),
                },
            ]}
        />
    );
}

/** The command is escaped: whoever reads the record must see what was run, not what it was made to look like. */
function ActionDetail({ detail }: { detail: DeedView["detail"] }) {
    const { command, exit_code: _, ...rest } = detail;
    return (
        <div>
            {command !== undefined && (
                <pre class="command">{escapeLines(Array.isArray(command) ? command.join(" ") : String(command))}</pre>
            )}
            <span class="note">{formatDetails(rest)}</span>
        </div>
    );
}

// Entries have no id.
const keyOf = (entry: DeedView): string => JSON.stringify([entry.at, entry.request_id, entry.action, entry.detail]);

/** Drops the entries that two overlapping pages of the record share. */
export function uniqueEntries(entries: readonly DeedView[]): DeedView[] {
    return [...new Map(entries.map((entry) => [keyOf(entry), entry])).values()];
}
