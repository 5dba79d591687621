// What a tenant used, by day, and how much of its quotas.

import { useSignal } from "@preact/signals";

import { get } from "../api/client";
import type { QuotaTable, QuotaView, UsageFigures, UsageTable } from "../api/schemas";
import { download } from "../api/transfers";
import { hasScope } from "../auth/account";
import { Fact } from "../components/facts";
import { Meter } from "../components/meter";
import { runAction } from "../components/notifications";
import { RequestView, useRequest } from "../components/request";
import { Table } from "../components/table";
import { useTitle } from "../components/use_title";
import { formatBytes, formatDateTime, formatDuration, MIB } from "../lib/format";

export function UsagePage() {
    useTitle("Usage");
    const first = useSignal("");
    const last = useSignal("");
    const tenant = useSignal("");
    const allTenants = hasScope("audit");
    const path = allTenants ? "/api/admin/usage" : "/api/usage";
    const query = () => ({ first: first.value, last: last.value, of: allTenants ? tenant.value : "" });
    const loaded = useRequest(
        (signal) => get<UsageTable>(path, query(), signal),
        [first.value, last.value, tenant.value],
    );
    const dateField = (label: string, value: typeof first) => (
        <label>
            {label}
            <input type="date" value={value.value} onChange={(event) => (value.value = event.currentTarget.value)} />
        </label>
    );
    return (
        <section aria-labelledby="title">
            <h1 id="title">Usage</h1>
            <div class="row">
                {dateField("From", first)}
                {dateField("To", last)}
                {allTenants && (
                    <label>
                        Tenant
                        <input
                            type="text"
                            placeholder="All"
                            spellcheck={false}
                            autocomplete="off"
                            value={tenant.value}
                            onChange={(event) => (tenant.value = event.currentTarget.value.trim())}
                        />
                    </label>
                )}
                <button
                    type="button"
                    class="plain"
                    onClick={() => runAction(() => download(path, { ...query(), format: "csv" }, "usage.csv"))}
                >
                    Download as CSV
                </button>
            </div>
            <RequestView request={loaded}>
                {(table) => (
                    <>
                        <dl class="facts card">
                            {COLUMNS.map((column) => (
                                <Fact key={column.name} name={column.name}>
                                    {column.render(table.total)}
                                </Fact>
                            ))}
                            <Fact name="Artifacts now">{formatBytes(table.artifact_bytes)}</Fact>
                        </dl>
                        <h2>By day</h2>
                        <Table
                            label="Usage by day"
                            rows={[...table.usage].reverse()}
                            keyOf={(row) => `${row.day} ${row.tenant}`}
                            empty="Nothing was used in this time."
                            columns={[
                                { name: "Day", render: (row) => <span class="nowrap">{row.day}</span> },
                                ...(allTenants
                                    ? [{ name: "Tenant", render: (row: { tenant: string }) => row.tenant }]
                                    : []),
                                ...COLUMNS.map((column) => ({ ...column, right: true })),
                            ]}
                        />
                    </>
                )}
            </RequestView>
            {hasScope("read") && <Quotas tenant={hasScope("admin") ? tenant.value : ""} />}
        </section>
    );
}

const COLUMNS: { name: string; render: (row: UsageFigures) => string }[] = [
    { name: "Sessions", render: (row) => String(row.sessions) },
    { name: "Commands", render: (row) => String(row.commands) },
    { name: "Commands ran", render: (row) => formatDuration(row.exec_s) },
    { name: "Processor time", render: (row) => formatDuration(row.cpu_s) },
    { name: "Sessions lived", render: (row) => formatDuration(row.session_s) },
    { name: "Memory set aside", render: (row) => `${(row.memory_mb_s / 1024 / 3600).toFixed(2)} GiB h` },
    { name: "Bytes in", render: (row) => formatBytes(row.bytes_in) },
    { name: "Bytes out", render: (row) => formatBytes(row.bytes_out) },
    { name: "Network", render: (row) => formatBytes(row.egress_bytes) },
    { name: "Refused connections", render: (row) => String(row.egress_refused) },
];

const formatMib = (value: number): string => formatBytes(value * MIB);
/** The label of each quota, and the formatter of its values. */
const QUOTAS: Record<string, [string, ((value: number) => string)?]> = {
    sessions: ["Sessions that are not paused"],
    paused_sessions: ["Paused sessions"],
    disk_mb: ["Disk of sessions", formatMib],
    gpus: ["Graphics processors"],
    requests_per_minute: ["Requests"],
    creates_per_minute: ["New sessions"],
    exec_seconds_per_day: ["Time of commands", formatDuration],
    bytes_out_per_day: ["Bytes of answers", formatBytes],
    egress_bytes_per_day: ["Bytes over the network", formatBytes],
    artifacts_mb: ["Artifacts", formatMib],
    snapshots_mb: ["Snapshots", formatMib],
    volumes: ["Volumes"],
    volumes_mb: ["Sizes of volumes", formatMib],
    logs_mb: ["Logs of sessions", formatMib],
    egress_connections: ["Connections to the network"],
    egress_mbps: ["Speed of the network", (value) => `${value} Mbit/s`],
};
const formatterOf = (quota: QuotaView) => QUOTAS[quota.name]?.[1] ?? String;

export function Quotas({ tenant }: { tenant: string }) {
    const loaded = useRequest(
        (signal) => get<QuotaTable>(tenant ? "/api/admin/quotas" : "/api/quotas", { of: tenant }, signal),
        [tenant],
        10_000,
    );
    return (
        <section aria-labelledby="quotas">
            <h2 id="quotas">Quotas</h2>
            <RequestView request={loaded}>
                {(table) => (
                    <>
                        <p class="note">
                            Of the tenant {table.tenant}. Those of the day start anew{" "}
                            {formatDateTime(table.day_ends_at)}.
                        </p>
                        <Table
                            label="Quotas"
                            rows={table.quotas}
                            keyOf={(quota) => `${quota.of} ${quota.name}`}
                            columns={[
                                {
                                    name: "Quota",
                                    render: (quota) => (
                                        <>
                                            {QUOTAS[quota.name]?.[0] ?? quota.name}
                                            <small class="mono">{quota.name}</small>
                                        </>
                                    ),
                                },
                                { name: "Of the", render: (quota) => quota.of },
                                {
                                    name: "Used",
                                    right: true,
                                    render: (quota) =>
                                        quota.used === null ? (
                                            "–"
                                        ) : (
                                            <Meter
                                                value={quota.used}
                                                max={quota.bound ?? 0}
                                                format={formatterOf(quota)}
                                            />
                                        ),
                                },
                                {
                                    name: "At most",
                                    right: true,
                                    render: (quota) =>
                                        quota.bound === null ? "no bound" : formatterOf(quota)(quota.bound),
                                },
                                {
                                    name: "In",
                                    render: (quota) =>
                                        ({ now: "at once", minute: "a minute", day: "a day" })[quota.per] ?? quota.per,
                                },
                            ]}
                        />
                    </>
                )}
            </RequestView>
        </section>
    );
}
