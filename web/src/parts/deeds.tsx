// Deeds of the audit record, as a table.

import { Table } from "./table";
import { fullTime, shortTime } from "./units";
import { legible } from "./visible";

export interface Deed {
    at: string;
    action: string;
    tenant: string;
    session_id: string;
    key_id: string;
    client: string;
    request_id: string;
    status: number;
    result: string;
    duration_ms: number;
    detail: Record<string, unknown>;
}

export interface Page {
    deeds: Deed[];
    next: string | null;
}

const RESULTS: { [result: string]: string } = { ok: "ok", allowed: "ok", more: "warn", left: "warn" };

export function DeedTable({
    deeds,
    empty,
    withTenant = false,
}: {
    deeds: readonly Deed[];
    empty: string;
    withTenant?: boolean;
}) {
    return (
        <Table
            label="Audit record"
            rows={deeds}
            keyOf={keyOf}
            empty={empty}
            columns={[
                {
                    name: "Time",
                    show: (one) => (
                        <span class="nowrap" title={fullTime(one.at)}>
                            {withTenant ? fullTime(one.at) : shortTime(one.at)}
                        </span>
                    ),
                },
                ...(withTenant ? [{ name: "Tenant", show: (one: Deed) => one.tenant }] : []),
                { name: "Action", show: (one) => <span class="nowrap">{one.action}</span> },
                {
                    name: "Result",
                    show: (one) =>
                        one.result && <span class={`state ${RESULTS[one.result] ?? "refused"}`}>{one.result}</span>,
                },
                { name: "What", show: (one) => <What deed={one} /> },
                { name: "Exit code", show: (one) => exitCode(one), right: true },
                { name: "Took", show: (one) => <span class="nowrap">{took(one.duration_ms)}</span>, right: true },
                {
                    name: "Who",
                    show: (one) => <span class="nowrap">{[one.key_id, one.client].filter(Boolean).join(" ")}</span>,
                },
            ]}
        />
    );
}

function What({ deed }: { deed: Deed }) {
    const { command, exit_code: _code, ...rest } = deed.detail;
    return (
        <div>
            {command !== undefined && (
                <pre class="command">{legibleLines(Array.isArray(command) ? command.join(" ") : String(command))}</pre>
            )}
            <span class="note">{describeValues(rest)}</span>
        </div>
    );
}

function exitCode(deed: Deed): string {
    return deed.detail.exit_code === undefined ? "" : String(deed.detail.exit_code);
}

function took(ms: number): string {
    if (ms === 0) return "";
    return ms < 1000 ? `${ms.toFixed(1)} ms` : `${(ms / 1000).toFixed(2)} s`;
}

/** What is known, as text: "port 81, reason no rule allows it". */
export function describeValues(values: Record<string, unknown>): string {
    return Object.entries(values)
        .filter(([, value]) => value !== null && value !== "" && value !== undefined)
        .map(
            ([name, value]) =>
                `${name.replaceAll("_", " ")} ${typeof value === "object" ? JSON.stringify(value) : String(value)}`,
        )
        .map(legible)
        .join(", ");
}

/** Whoever reads the record must see what was run, not what it was made to look like. */
const legibleLines = (text: string): string => text.split("\n").map(legible).join("\n");

const keyOf = (deed: Deed): string => JSON.stringify([deed.at, deed.request_id, deed.action, deed.detail]);

export function unique(deeds: readonly Deed[]): Deed[] {
    return [...new Map(deeds.map((deed) => [keyOf(deed), deed])).values()];
}
