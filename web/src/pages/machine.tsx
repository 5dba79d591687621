// The machine and the cluster: how it went in the last hour or day, the pools, the room that is left, the workers.

import { useSignal } from "@preact/signals";

import { facts } from "../account";
import { Workers } from "../admin/workers";
import { get } from "../api";
import { Shown, useLoaded } from "../parts/load";
import { Meter } from "../parts/meter";
import { Plot } from "../parts/plot";
import { Table } from "../parts/table";
import { useTitle } from "../parts/title";
import { bytes } from "../parts/units";
import { WorkerChoice } from "../parts/worker_choice";

type Values = readonly (number | null)[];

interface History {
    process: string;
    interval_s: number;
    first_at: string;
    columns: Record<string, Values>;
    pools: Record<string, Record<string, Values>>;
}

interface Pool {
    ready: number;
    creating: number;
    waiting: number;
    target: number;
    claims: number;
    hit_rate: number | null;
    failures: number;
    timeouts: number;
    latency_p50_s: number | null;
    latency_p95_s: number | null;
    last_failure: string | null;
}

interface Worker {
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

interface Stats {
    sessions: Record<string, number>;
    workers: Record<string, Worker>;
}

const EVERY_MS = 10_000;
const MIB = 1024 * 1024;

export function MachinePage() {
    useTitle("Machine");
    const span = useSignal<"1h" | "24h">("1h");
    const worker = useSignal("");
    const stats = useLoaded((signal) => get<Stats>("/api/stats", {}, signal), [], EVERY_MS);
    const history = useLoaded(
        (signal) => get<History>("/api/history", { span: span.value, worker: worker.value }, signal),
        [span.value, worker.value],
        EVERY_MS,
    );
    const inCluster = facts.value!.cluster;
    return (
        <section aria-labelledby="title">
            <h1 id="title">{inCluster ? "Cluster" : "Machine"}</h1>
            {inCluster && <Workers />}
            <Shown of={stats}>{(found) => <Now stats={found} />}</Shown>
            <div class="row">
                <label>
                    Time
                    <select
                        value={span.value}
                        onChange={(event) => (span.value = event.currentTarget.value as "1h" | "24h")}
                    >
                        <option value="1h">Last hour</option>
                        <option value="24h">Last day</option>
                    </select>
                </label>
                <WorkerChoice label="Of" any="The coordinator that answers" value={worker} />
            </div>
            <Shown of={history}>
                {(found) => <Plots history={found} ofCoordinator={inCluster && !worker.value} />}
            </Shown>
        </section>
    );
}

function Now({ stats }: { stats: Stats }) {
    const pools = Object.entries(stats.workers).flatMap(([worker, one]) =>
        Object.entries(one.pools).map(([name, pool]) => ({ worker, name, ...pool })),
    );
    const many = Object.keys(stats.workers).length > 1;
    return (
        <>
            <dl class="facts card">
                {Object.entries(stats.sessions).map(([state, count]) => (
                    <div key={state}>
                        <dt>Sessions {state}</dt>
                        <dd>{count}</dd>
                    </div>
                ))}
                {Object.entries(stats.workers).map(([name, worker]) => (
                    <Room key={name} name={many ? name : ""} worker={worker} />
                ))}
            </dl>
            <h2>Pools</h2>
            <Table
                label="Pools"
                rows={pools}
                keyOf={(pool) => `${pool.worker} ${pool.name}`}
                empty="There is no pool."
                columns={[
                    { name: "Environment", show: (pool) => pool.name },
                    ...(many ? [{ name: "Worker", show: (pool: { worker: string }) => pool.worker }] : []),
                    { name: "Ready", right: true, show: (pool) => `${pool.ready} of ${pool.target}` },
                    { name: "Being made", right: true, show: (pool) => pool.creating },
                    { name: "Waiting", right: true, show: (pool) => pool.waiting },
                    { name: "Claims", right: true, show: (pool) => pool.claims },
                    {
                        name: "From the pool",
                        right: true,
                        show: (pool) => (pool.hit_rate === null ? "–" : `${Math.round(100 * pool.hit_rate)} %`),
                    },
                    { name: "Claim p50", right: true, show: (pool) => inMs(pool.latency_p50_s) },
                    { name: "Claim p95", right: true, show: (pool) => inMs(pool.latency_p95_s) },
                    {
                        name: "Failures",
                        right: true,
                        show: (pool) =>
                            pool.last_failure ? <span title={pool.last_failure}>{pool.failures}</span> : pool.failures,
                    },
                ]}
            />
        </>
    );
}

function Room({ name, worker }: { name: string; worker: Worker }) {
    const { guard } = worker;
    const of = name ? ` of ${name}` : "";
    return (
        <>
            <div>
                <dt>Sandboxes{of}</dt>
                <dd>
                    <Meter value={worker.sandboxes} most={guard.max_sandboxes} text={String} />
                </dd>
            </div>
            <div>
                <dt>Memory free{of}</dt>
                <dd>
                    {bytes(guard.memory_free_mb * MIB)}, {bytes(guard.memory_reserve_mb * MIB)} stay free{" "}
                    {guard.pressure && <span class="state warn">close to full</span>}
                </dd>
            </div>
            <div>
                <dt>Disk free{of}</dt>
                <dd>
                    {bytes(guard.disk_free_mb * MIB)}, {bytes(guard.disk_reserve_mb * MIB)} stay free
                </dd>
            </div>
            {worker.gpus > 0 && (
                <div>
                    <dt>Graphics processors free{of}</dt>
                    <dd>
                        {worker.gpus_free.length} of {worker.gpus}
                    </dd>
                </div>
            )}
            {worker.destroying > 0 && (
                <div>
                    <dt>Being destroyed{of}</dt>
                    <dd>{worker.destroying}</dd>
                </div>
            )}
        </>
    );
}

const inMs = (seconds: number | null): string => (seconds === null ? "–" : `${(1000 * seconds).toFixed(1)} ms`);
/** Nothing beside the steps of an axis that are no whole numbers. */
const whole = (value: number): string => (Number.isInteger(value) ? String(value) : "");
const ms = (value: number): string => `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;

function Plots({ history, ofCoordinator }: { history: History; ofCoordinator: boolean }) {
    const { columns, pools } = history;
    const first = Date.parse(history.first_at) / 1000;
    const count = columns.requests?.length ?? 0;
    if (count === 0)
        return <p class="note">Nothing is known yet: a point is made every ten seconds, and a restart begins anew.</p>;
    const times = Array.from({ length: count }, (_, at) => first + at * history.interval_s);
    const line = (label: string, values: Values | undefined) => ({ label, values: values ?? [] });
    const plot = (label: string, show: (value: number) => string, ...lines: { label: string; values: Values }[]) => {
        const known = lines.filter((one) => one.values.some((value) => value !== null));
        return (
            known.length > 0 && (
                <Plot key={label} label={label} times={times} lines={known} show={show} binary={show === bytes} />
            )
        );
    };
    const inBytes = (values: Values | undefined): Values =>
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
                    whole,
                    line("running", columns.sessions_running),
                    line("pending", columns.sessions_pending),
                    line("sandboxes", columns.sandboxes),
                )}
                {plot(
                    "Pools",
                    whole,
                    line("ready", columns.pool_ready),
                    line("being made", columns.pool_creating),
                    line("waiting", columns.pool_waiting),
                )}
                {!ofCoordinator &&
                    plot(
                        "Claims",
                        whole,
                        line("from the pool", columns.pool_hits),
                        line("made for them", columns.pool_misses),
                    )}
                {plot("Creating a session", ms, line("p50", columns.create_ms_p50), line("p95", columns.create_ms_p95))}
                {!ofCoordinator && plot("Commands", whole, line("commands", columns.execs))}
                {plot(
                    "What Warren adds to a command",
                    ms,
                    line("p50", columns.exec_overhead_ms_p50),
                    line("p95", columns.exec_overhead_ms_p95),
                )}
                {plot("Requests", whole, line("requests", columns.requests), line("errors", columns.errors))}
                {plot("Time of requests", ms, line("p50", columns.request_ms_p50), line("p95", columns.request_ms_p95))}
                {!ofCoordinator &&
                    plot(
                        "Network",
                        whole,
                        line("allowed", columns.egress_allowed),
                        line("refused", columns.egress_refused),
                    )}
                {plot("Memory free", bytes, line("free", inBytes(columns.memory_free_mb)))}
                {plot("Disk free", bytes, line("free", inBytes(columns.disk_free_mb)))}
                {plot("Load", (value) => value.toFixed(2), line("load", columns.load))}
                {plot("Event loop, longest wait", ms, line("lag", columns.loop_lag_ms))}
                {Object.entries(pools).map(([name, pool]) =>
                    plot(`Pool of ${name}`, whole, line("ready", pool.ready), line("waiting", pool.waiting)),
                )}
            </div>
        </>
    );
}
