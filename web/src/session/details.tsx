// What the session was created from, and how long it lives.

import type { LimitsView, VolumeMountView } from "../api/schemas";
import { Fact } from "../components/facts";
import { escapeName } from "../lib/escape";
import { formatBytes, formatDateTime, formatDuration, MIB } from "../lib/format";
import { isPaused } from "../lib/session_state";
import type { TabProps } from "../pages/session";

export function DetailsTab({ session }: TabProps) {
    const hasEnded = session.state === "ended";
    return (
        <>
            <FactList
                facts={[
                    ["State", session.state],
                    ["Environment", session.environment],
                    ["Image", session.image],
                    ["Provider", session.provider],
                    ["Worker", session.worker],
                    ["Thread", escapeName(session.thread_id ?? "")],
                    ["User, workspace", `${session.user}, ${session.workspace}`],
                    ["Created", formatDateTime(session.created_at)],
                    ["Idle time-out", formatDuration(session.idle_timeout_s)],
                    ["Ends in any case after", formatDuration(session.max_lifetime_s)],
                    ["When it is not used", ON_IDLE[session.on_idle] ?? null],
                    ["Ends when it is paused for", formatDuration(session.max_paused_s)],
                    ["Paused since", session.paused_at && formatDateTime(session.paused_at)],
                    [
                        "Ends at",
                        !hasEnded &&
                            session.expires_at &&
                            `${formatDateTime(session.expires_at)}, if it is ${isPaused(session.state) ? "still paused" : "not used"}`,
                    ],
                    ["Limits", session.limits && describeLimits(session.limits)],
                    ["Started from snapshot", session.snapshot ?? null],
                    ["Forked from", session.forked_from ?? null],
                    ["Restored from disk", session.restored > 0 && `${session.restored} times`],
                    ["Volumes", session.volumes.map(describeMount).join(", ")],
                    ["Log", session.logs],
                    ["Graphics processors", session.gpus.join(", ")],
                    ["Variables", session.env_names.map(escapeName).join(", ")],
                    ["Secrets", session.secrets.map(escapeName).join(", ")],
                    ["Agent", escapeName(session.agent ?? "")],
                ]}
            />
            <h2>Metadata</h2>
            {Object.keys(session.metadata).length === 0 && <p class="note">It has none.</p>}
            <FactList
                facts={Object.entries(session.metadata).map(([name, value]) => [escapeName(name), escapeName(value)])}
            />
        </>
    );
}

function FactList({ facts }: { facts: [string, string | null | false][] }) {
    const known = facts.filter(([, value]) => value);
    return (
        known.length > 0 && (
            <dl class="facts card">
                {known.map(([name, value], at) => (
                    <Fact key={at} name={name}>
                        {value}
                    </Fact>
                ))}
            </dl>
        )
    );
}

const ON_IDLE: Record<string, string> = { end: "It ends", pause: "It is paused", hibernate: "It is hibernated" };

const describeMount = ({ name, path, read_only }: VolumeMountView): string =>
    `${name} at ${escapeName(path)}${read_only ? ", read only" : ""}`;

function describeLimits({ cpus, memory_mb, disk_mb, pids }: LimitsView): string {
    return `${cpus} CPU, ${formatBytes(memory_mb * MIB)} memory, ${formatBytes(disk_mb * MIB)} disk, ${pids} processes`;
}
