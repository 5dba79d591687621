// The machine or the cluster: sessions, free resources, pools, workers, and the history of the last hour or day.

import { useSignal } from "@preact/signals";

import { Workers } from "../admin/workers";
import { get } from "../api/client";
import type { HistoryView, StatsView } from "../api/schemas";
import { serverInfo } from "../auth/account";
import { Fact } from "../components/facts";
import { SelectField } from "../components/fields";
import { Meter } from "../components/meter";
import { Plot } from "../components/plot";
import { RequestView, useRequest } from "../components/request";
import { Table } from "../components/table";
import { useTitle } from "../components/use_title";
import { WorkerSelect } from "../components/worker_select";
import { formatBytes, MIB } from "../lib/format";

type Values = readonly (number | null)[];

interface Pool {
    ready: number;
    creating: number;
    waiting: number;
    target: number;
    shortage: string | null;
    claims: number;
    hit_rate: number | null;
    failures: number;
    timeouts: number;
    latency_p50_s: number | null;
    latency_p95_s: number | null;
    last_failure: string | null;
}

/** A worker of StatsView.workers, which the OpenAPI document leaves open. */
interface WorkerStats {
    sandboxes: number;
    claimed: number;
    destroying: number;
    pools: Record<string, Pool>;
    guard: {
        memory_free_mb: number;
        memory_reserve_mb: number;
        disk_free_mb: number;
        disk_reserve_mb: number;
        max_sandboxes: number;
        pressure: boolean;
    };
    gpus: number;
    gpus_free: string[];
}

const INTERVAL_MS = 10_000;
const SPANS = [
    ["1h", "Last hour"],
    ["24h", "Last day"],
] as const;

export function MachinePage() {
    useTitle("Machine");
    const span = useSignal("1h");
    const worker = useSignal("");
    const stats = useRequest((signal) => get<StatsView>("/api/stats", {}, signal), [], INTERVAL_MS);
    const history = useRequest(
        (signal) => get<HistoryView>("/api/history", { span: span.value, worker: worker.value }, signal),
        [span.value, worker.value],
        INTERVAL_MS,
    );
    const isCluster = serverInfo.value!.cluster;
    return (
        <section aria-labelledby="title">
            <h1 id="title">{isCluster ? "Cluster" : "Machine"}</h1>
            {isCluster && <Workers />}
            <RequestView request={stats}>
                {(found) => (
                    <CurrentState
                        sessions={found.sessions}
                        workers={found.workers as unknown as Record<string, WorkerStats>}
                    />
                )}
            </RequestView>
            <div class="row">
                <SelectField
                    label="Time"
                    value={span.value}
                    options={SPANS}
                    onChange={(value) => (span.value = value)}
                />
                <WorkerSelect label="Of" any="The coordinator that answers" value={worker} />
            </div>
            <RequestView request={history}>
                {(found) => <HistoryPlots history={found} ofCoordinator={isCluster && !worker.value} />}
            </RequestView>
        </section>
    );
}

interface CurrentStateProps {
    sessions: Record<string, number>;
    workers: Record<string, WorkerStats>;
}

function CurrentState({ sessions, workers }: CurrentStateProps) {
    const pools = Object.entries(workers).flatMap(([worker, { pools }]) =>
        Object.entries(pools).map(([name, pool]) => ({ worker, name, ...pool })),
    );
    const hasManyWorkers = Object.keys(workers).length > 1;
    return (
        <>
            <dl class="facts card">
                {Object.entries(sessions).map(([state, count]) => (
                    <Fact key={state} name={`Sessions ${state}`}>
                        {count}
                    </Fact>
                ))}
                {Object.entries(workers).map(([name, worker]) => (
                    <FreeResources key={name} name={hasManyWorkers ? name : ""} worker={worker} />
                ))}
            </dl>
            <h2>Pools</h2>
            <Table
                label="Pools"
                rows={pools}
                keyOf={(pool) => `${pool.worker} ${pool.name}`}
                empty="There is no pool."
                columns={[
                    { name: "Environment", render: (pool) => pool.name },
                    ...(hasManyWorkers ? [{ name: "Worker", render: (pool: { worker: string }) => pool.worker }] : []),
                    { name: "Ready", right: true, render: (pool) => `${pool.ready} of ${pool.target}` },
                    { name: "Being made", right: true, render: (pool) => pool.creating },
                    { name: "Why fewer", render: (pool) => pool.shortage?.replaceAll("_", " ") ?? "–" },
                    { name: "Waiting", right: true, render: (pool) => pool.waiting },
                    { name: "Claims", right: true, render: (pool) => pool.claims },
                    {
                        name: "From the pool",
                        right: true,
                        render: (pool) => (pool.hit_rate === null ? "–" : `${Math.round(100 * pool.hit_rate)} %`),
                    },
                    { name: "Claim p50", right: true, render: (pool) => formatLatency(pool.latency_p50_s) },
                    { name: "Claim p95", right: true, render: (pool) => formatLatency(pool.latency_p95_s) },
                    {
                        name: "Failures",
                        right: true,
                        render: (pool) =>
                            pool.last_failure ? <span title={pool.last_failure}>{pool.failures}</span> : pool.failures,
                    },
                ]}
            />
        </>
    );
}

function FreeResources({ name, worker }: { name: string; worker: WorkerStats }) {
    const { guard } = worker;
    const suffix = name ? ` of ${name}` : "";
    return (
        <>
            <Fact name={`Sandboxes${suffix}`}>
                <Meter value={worker.sandboxes} max={guard.max_sandboxes} format={String} />
            </Fact>
            <Fact name={`Memory free${suffix}`}>
                {formatBytes(guard.memory_free_mb * MIB)}, {formatBytes(guard.memory_reserve_mb * MIB)} stay free{" "}
                {guard.pressure && <span class="state warn">close to full</span>}
            </Fact>
            <Fact name={`Disk free${suffix}`}>
                {formatBytes(guard.disk_free_mb * MIB)}, {formatBytes(guard.disk_reserve_mb * MIB)} stay free
            </Fact>
            {worker.gpus > 0 && (
                <Fact name={`Graphics processors free${suffix}`}>
                    {worker.gpus_free.length} of {worker.gpus}
                </Fact>
            )}
            {worker.destroying > 0 && <Fact name={`Being destroyed${suffix}`}>{worker.destroying}</Fact>}
        </>
    );
}

const formatLatency = (seconds: number | null): string =>
    seconds === null ? "–" : `${(1000 * seconds).toFixed(1)} ms`;
/** Ticks between whole numbers have no label. */
const formatCount = (value: number): string => (Number.isInteger(value) ? String(value) : "");
const formatMs = (value: number): string => `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;

function HistoryPlots({ history, ofCoordinator }: { history: HistoryView; ofCoordinator: boolean }) {
    const { columns, pools } = history;
    const firstS = Date.parse(history.first_at) / 1000;
    const count = columns.requests?.length ?? 0;
    if (count === 0)
        return <p class="note">Nothing is known yet: a point is made every ten seconds, and a restart begins anew.</p>;
    const times = Array.from({ length: count }, (_, index) => firstS + index * history.interval_s);
    const line = (label: string, values: Values | undefined) => ({ label, values: values ?? [] });
    const plot = (label: string, format: (value: number) => string, ...lines: { label: string; values: Values }[]) => {
        const known = lines.filter((line) => line.values.some((value) => value !== null));
        return (
            known.length > 0 && (
                <Plot
                    key={label}
                    label={label}
                    times={times}
                    lines={known}
                    format={format}
                    binary={format === formatBytes}
                />
            )
        );
    };
    const toBytes = (values: Values | undefined): Values =>
        (values ?? []).map((value) => (value === null ? null : value * MIB));
    return (
        <>
            <p class="note">
                Figures of {history.process}, kept in its memory. Counts are those of {history.interval_s} seconds.
                {ofCoordinator && " Workers have those of commands, pools and networks."}
            </p>
            <div class="plots">
                {plot(
                    "Sessions",
                    formatCount,
                    line("running", columns.sessions_running),
                    line("pending", columns.sessions_pending),
                    line("sandboxes", columns.sandboxes),
                )}
                {plot(
                    "Pools",
                    formatCount,
                    line("ready", columns.pool_ready),
                    line("being made", columns.pool_creating),
                    line("waiting", columns.pool_waiting),
                )}
                {!ofCoordinator &&
                    plot(
                        "Claims",
                        formatCount,
                        line("from the pool", columns.pool_hits),
                        line("made for them", columns.pool_misses),
                    )}
                {plot(
                    "Creating a session",
                    formatMs,
                    line("p50", columns.create_ms_p50),
                    line("p95", columns.create_ms_p95),
                )}
                {!ofCoordinator && plot("Commands", formatCount, line("commands", columns.execs))}
                {plot(
                    "What Warren adds to a command",
                    formatMs,
                    line("p50", columns.exec_overhead_ms_p50),
                    line("p95", columns.exec_overhead_ms_p95),
                )}
                {plot("Requests", formatCount, line("requests", columns.requests), line("errors", columns.errors))}
                {plot(
                    "Time of requests",
                    formatMs,
                    line("p50", columns.request_ms_p50),
                    line("p95", columns.request_ms_p95),
                )}
                {!ofCoordinator &&
                    plot(
                        "Network",
                        formatCount,
                        line("allowed", columns.egress_allowed),
                        line("refused", columns.egress_refused),
                    )}
                {plot("Memory free", formatBytes, line("free", toBytes(columns.memory_free_mb)))}
                {plot("Disk free", formatBytes, line("free", toBytes(columns.disk_free_mb)))}
                {plot("Load", (value) => value.toFixed(2), line("load", columns.load))}
                {plot("Event loop, longest wait", formatMs, line("lag", columns.loop_lag_ms))}
                {Object.entries(pools).map(([name, pool]) =>
                    plot(`Pool of ${name}`, formatCount, line("ready", pool.ready), line("waiting", pool.waiting)),
                )}
            </div>
        </>
    );
}
