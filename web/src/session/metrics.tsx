// What the session uses: the current values beside the limits, and plots of the last minutes.

import { apiPath, get } from "../api/client";
import type { FiguresView, MetricsView } from "../api/schemas";
import { MeterBar } from "../components/meter";
import { Plot } from "../components/plot";
import { RequestView, useRequest } from "../components/request";
import { formatBytes } from "../lib/format";
import type { TabProps } from "../pages/session";
import { perSecond, seriesWithNow } from "./metrics_series";

const INTERVAL_MS = 5000;

export function MetricsTab({ session }: TabProps) {
    const loaded = useRequest(
        (signal) => get<MetricsView>(apiPath`/api/sessions/${session.session_id}/metrics`, {}, signal),
        [session.session_id],
        INTERVAL_MS,
    );
    return <RequestView request={loaded}>{(metrics) => <UsageView metrics={metrics} />}</RequestView>;
}

function UsageView({ metrics }: { metrics: MetricsView }) {
    const { limits, now } = metrics;
    const points = seriesWithNow(metrics);
    const times = points.map((point) => Date.parse(point.at) / 1000);
    const valuesOf = (name: keyof FiguresView) => points.map((point) => Number(point[name]));
    return (
        <>
            <ul class="gauges" aria-label="Now">
                <Gauge name="CPU" value={now.cpus} limit={limits.cpus} format={formatCores} />
                <Gauge name="Memory" value={now.memory_bytes} limit={limits.memory_bytes} format={formatBytes} />
                <Gauge name="Disk" value={now.disk_bytes} limit={limits.disk_bytes} format={formatBytes} />
                <Gauge name="Processes" value={now.processes} limit={limits.processes} format={formatCount} />
            </ul>
            <div class="plots">
                <Plot
                    label="CPU"
                    times={times}
                    lines={[{ label: "cores", values: valuesOf("cpus") }]}
                    limit={limits.cpus || undefined}
                    format={formatCores}
                />
                <Plot
                    label="Memory"
                    times={times}
                    binary
                    limit={limits.memory_bytes || undefined}
                    format={formatBytes}
                    lines={[
                        { label: "used", values: valuesOf("memory_bytes") },
                        { label: "file cache", values: valuesOf("cache_bytes") },
                    ]}
                />
                <Plot
                    label="Disk"
                    times={times}
                    binary
                    lines={[{ label: "used", values: valuesOf("disk_bytes") }]}
                    limit={limits.disk_bytes || undefined}
                    format={formatBytes}
                />
                <Plot
                    label="Processes"
                    times={times}
                    lines={[{ label: "running", values: valuesOf("processes") }]}
                    limit={limits.processes || undefined}
                    format={formatCount}
                />
                <Plot
                    label="Network"
                    times={times}
                    binary
                    format={formatRate}
                    lines={[
                        { label: "sent", values: perSecond(points, "sent_bytes") },
                        { label: "received", values: perSecond(points, "received_bytes") },
                    ]}
                />
            </div>
        </>
    );
}

const formatCores = (value: number): string => value.toFixed(2);
const formatCount = (value: number): string => String(Math.round(value));
const formatRate = (value: number): string => `${formatBytes(value)}/s`;

function Gauge({
    name,
    value,
    limit,
    format,
}: {
    name: string;
    value: number;
    limit: number;
    format: (value: number) => string;
}) {
    return (
        <li>
            <span class="name">{name}</span>
            <span>
                {format(value)}
                {limit > 0 && ` of ${format(limit)}`}
            </span>
            <MeterBar value={value} max={limit} />
        </li>
    );
}
