// What a tenant used, by day, and how much its quotas leave.

import { useSignal } from "@preact/signals";

import { may } from "../account";
import { download, get } from "../api";
import { Shown, useLoaded } from "../parts/load";
import { attempt } from "../parts/messages";
import { Meter } from "../parts/meter";
import { Table } from "../parts/table";
import { useTitle } from "../parts/title";
import { bytes, duration, fullTime } from "../parts/units";

interface Figures {
    sessions: number;
    commands: number;
    cpu_s: number;
    memory_mb_s: number;
    session_s: number;
    exec_s: number;
    bytes_in: number;
    bytes_out: number;
    egress_bytes: number;
    egress_connections: number;
    egress_refused: number;
}

interface Usage {
    first: string;
    last: string;
    usage: (Figures & { day: string; tenant: string })[];
    total: Figures;
    artifact_bytes: number;
}

interface Quota {
    name: string;
    of: string;
    per: string;
    bound: number | null;
    used: number | null;
}

export function UsagePage() {
    useTitle("Usage");
    const first = useSignal("");
    const last = useSignal("");
    const of = useSignal("");
    const all = may("audit");
    const place = all ? "/api/admin/usage" : "/api/usage";
    const query = () => ({ first: first.value, last: last.value, of: all ? of.value : "" });
    const loaded = useLoaded((signal) => get<Usage>(place, query(), signal), [first.value, last.value, of.value]);
    const day = (label: string, value: typeof first) => (
        <label>
            {label}
            <input type="date" value={value.value} onChange={(event) => (value.value = event.currentTarget.value)} />
        </label>
    );
    return (
        <section aria-labelledby="title">
            <h1 id="title">Usage</h1>
            <div class="row">
                {day("From", first)}
                {day("To", last)}
                {all && (
                    <label>
                        Tenant
                        <input
                            type="text"
                            placeholder="All"
                            spellcheck={false}
                            autocomplete="off"
                            value={of.value}
                            onChange={(event) => (of.value = event.currentTarget.value.trim())}
                        />
                    </label>
                )}
                <button
                    type="button"
                    class="plain"
                    onClick={() => attempt(() => download(place, { ...query(), format: "csv" }, "usage.csv"))}
                >
                    Download as CSV
                </button>
            </div>
            <Shown of={loaded}>
                {(found) => (
                    <>
                        <dl class="facts card">
                            {columns.map((column) => (
                                <div key={column.name}>
                                    <dt>{column.name}</dt>
                                    <dd>{column.show(found.total)}</dd>
                                </div>
                            ))}
                            <div>
                                <dt>Artifacts now</dt>
                                <dd>{bytes(found.artifact_bytes)}</dd>
                            </div>
                        </dl>
                        <h2>By day</h2>
                        <Table
                            label="Usage by day"
                            rows={[...found.usage].reverse()}
                            keyOf={(row) => `${row.day} ${row.tenant}`}
                            empty="Nothing was used in this time."
                            columns={[
                                { name: "Day", show: (row) => <span class="nowrap">{row.day}</span> },
                                ...(all ? [{ name: "Tenant", show: (row: { tenant: string }) => row.tenant }] : []),
                                ...columns.map((column) => ({ ...column, right: true })),
                            ]}
                        />
                    </>
                )}
            </Shown>
            {may("read") && <Quotas of={may("admin") ? of.value : ""} />}
        </section>
    );
}

const columns: { name: string; show: (row: Figures) => string }[] = [
    { name: "Sessions", show: (row) => String(row.sessions) },
    { name: "Commands", show: (row) => String(row.commands) },
    { name: "Commands ran", show: (row) => duration(row.exec_s) },
    { name: "Processor time", show: (row) => duration(row.cpu_s) },
    { name: "Sessions lived", show: (row) => duration(row.session_s) },
    { name: "Memory set aside", show: (row) => `${(row.memory_mb_s / 1024 / 3600).toFixed(2)} GiB h` },
    { name: "Bytes in", show: (row) => bytes(row.bytes_in) },
    { name: "Bytes out", show: (row) => bytes(row.bytes_out) },
    { name: "Network", show: (row) => bytes(row.egress_bytes) },
    { name: "Refused connections", show: (row) => String(row.egress_refused) },
];

const inMib = (value: number): string => bytes(value * 2 ** 20);
/** What each quota bounds, and how its values are shown. */
const QUOTAS: Record<string, [string, ((value: number) => string)?]> = {
    sessions: ["Sessions"],
    disk_mb: ["Disk of sessions", inMib],
    gpus: ["Graphics processors"],
    requests_per_minute: ["Requests"],
    creates_per_minute: ["New sessions"],
    exec_seconds_per_day: ["Time of commands", duration],
    bytes_out_per_day: ["Bytes of answers", bytes],
    egress_bytes_per_day: ["Bytes over the network", bytes],
    artifacts_mb: ["Artifacts", inMib],
    egress_connections: ["Connections to the network"],
    egress_mbps: ["Speed of the network", (value) => `${value} Mbit/s`],
};
const unitOf = (quota: Quota) => QUOTAS[quota.name]?.[1] ?? String;

export function Quotas({ of }: { of: string }) {
    const loaded = useLoaded(
        (signal) =>
            get<{ tenant: string; day_ends_at: string; quotas: Quota[] }>(
                of ? "/api/admin/quotas" : "/api/quotas",
                { of },
                signal,
            ),
        [of],
        10_000,
    );
    return (
        <section aria-labelledby="quotas">
            <h2 id="quotas">Quotas</h2>
            <Shown of={loaded}>
                {(found) => (
                    <>
                        <p class="note">
                            Of the tenant {found.tenant}. Those of the day start anew {fullTime(found.day_ends_at)}.
                        </p>
                        <Table
                            label="Quotas"
                            rows={found.quotas}
                            keyOf={(quota) => `${quota.of} ${quota.name}`}
                            columns={[
                                {
                                    name: "Quota",
                                    show: (quota) => (
                                        <>
                                            {QUOTAS[quota.name]?.[0] ?? quota.name}
                                            <small class="mono">{quota.name}</small>
                                        </>
                                    ),
                                },
                                { name: "Of the", show: (quota) => quota.of },
                                {
                                    name: "Used",
                                    right: true,
                                    show: (quota) =>
                                        quota.used === null ? (
                                            "–"
                                        ) : (
                                            <Meter value={quota.used} most={quota.bound ?? 0} text={unitOf(quota)} />
                                        ),
                                },
                                {
                                    name: "At most",
                                    right: true,
                                    show: (quota) => (quota.bound === null ? "no bound" : unitOf(quota)(quota.bound)),
                                },
                                {
                                    name: "In",
                                    show: (quota) =>
                                        ({ now: "at once", minute: "a minute", day: "a day" })[quota.per] ?? quota.per,
                                },
                            ]}
                        />
                    </>
                )}
            </Shown>
        </section>
    );
}
