// What the session uses: now against its limits, and over the last minutes.

import { get, path } from "../api";
import type { TabProps } from "../pages/session";
import { Shown, useLoaded } from "../parts/load";
import { Plot } from "../parts/plot";
import { bytes, percent } from "../parts/units";
import type { Figures as Point, SessionMetrics } from "../types";

const EVERY_MS = 5000;
const HIGH = 90;

export function Figures({ session }: TabProps) {
    const loaded = useLoaded(
        (signal) => get<SessionMetrics>(path`/api/sessions/${session.session_id}/metrics`, {}, signal),
        [session.session_id],
        EVERY_MS,
    );
    return <Shown of={loaded}>{(metrics) => <Shows metrics={metrics} />}</Shown>;
}

function Shows({ metrics }: { metrics: SessionMetrics }) {
    const { limits, now } = metrics;
    const points = withNow(metrics);
    const times = points.map((point) => Date.parse(point.at) / 1000);
    const over = (name: keyof Point) => points.map((point) => Number(point[name]));
    return (
        <>
            <ul class="gauges" aria-label="Now">
                <Gauge name="CPU" value={now.cpus} limit={limits.cpus} show={cores} />
                <Gauge name="Memory" value={now.memory_bytes} limit={limits.memory_bytes} show={bytes} />
                <Gauge name="Disk" value={now.disk_bytes} limit={limits.disk_bytes} show={bytes} />
                <Gauge name="Processes" value={now.processes} limit={limits.processes} show={whole} />
            </ul>
            <div class="plots">
                <Plot
                    label="CPU"
                    times={times}
                    lines={[{ label: "cores", values: over("cpus") }]}
                    limit={limits.cpus || undefined}
                    show={cores}
                />
                <Plot
                    label="Memory"
                    times={times}
                    binary
                    limit={limits.memory_bytes || undefined}
                    show={bytes}
                    lines={[
                        { label: "used", values: over("memory_bytes") },
                        { label: "file cache", values: over("cache_bytes") },
                    ]}
                />
                <Plot
                    label="Disk"
                    times={times}
                    binary
                    lines={[{ label: "used", values: over("disk_bytes") }]}
                    limit={limits.disk_bytes || undefined}
                    show={bytes}
                />
                <Plot
                    label="Processes"
                    times={times}
                    lines={[{ label: "running", values: over("processes") }]}
                    limit={limits.processes || undefined}
                    show={whole}
                />
                <Plot
                    label="Network"
                    times={times}
                    binary
                    show={rate}
                    lines={[
                        { label: "sent", values: perSecond(points, "sent_bytes") },
                        { label: "received", values: perSecond(points, "received_bytes") },
                    ]}
                />
            </div>
        </>
    );
}

const cores = (value: number): string => value.toFixed(2);
const whole = (value: number): string => String(Math.round(value));
const rate = (value: number): string => `${bytes(value)}/s`;

/** The series, with what is used at this moment as its last point. */
function withNow({ series, now }: SessionMetrics): Point[] {
    const last = series[series.length - 1];
    return last && Date.parse(last.at) >= Date.parse(now.at) ? series : [...series, now];
}

function perSecond(points: readonly Point[], name: "sent_bytes" | "received_bytes"): (number | null)[] {
    return points.map((point, at) => {
        const before = points[at - 1];
        if (!before) return null;
        const seconds = (Date.parse(point.at) - Date.parse(before.at)) / 1000;
        return seconds > 0 ? Math.max(0, point[name] - before[name]) / seconds : null;
    });
}

function Gauge({
    name,
    value,
    limit,
    show,
}: {
    name: string;
    value: number;
    limit: number;
    show: (value: number) => string;
}) {
    const part = percent(value, limit);
    return (
        <li>
            <span class="name">{name}</span>
            <span>
                {show(value)}
                {limit > 0 && ` of ${show(limit)}`}
            </span>
            {limit > 0 && (
                <div class={`meter ${part >= HIGH ? "high" : ""}`} aria-hidden="true">
                    <span style={{ width: `${part}%` }} />
                </div>
            )}
        </li>
    );
}
