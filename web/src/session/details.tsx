// What the session was created from, and how long it lives.

import type { LimitsView } from "../api/schemas";
import { Fact } from "../components/facts";
import { escapeName } from "../lib/escape";
import { formatBytes, formatDateTime, formatDuration, MIB } from "../lib/format";
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
                    ["Ends when it is not used for", formatDuration(session.idle_timeout_s)],
                    ["Ends in any case after", formatDuration(session.max_lifetime_s)],
                    [
                        "Ends at",
                        !hasEnded && session.expires_at && `${formatDateTime(session.expires_at)}, if it is not used`,
                    ],
                    ["Limits", session.limits && describeLimits(session.limits)],
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

function describeLimits({ cpus, memory_mb, disk_mb, pids }: LimitsView): string {
    return `${cpus} CPU, ${formatBytes(memory_mb * MIB)} memory, ${formatBytes(disk_mb * MIB)} disk, ${pids} processes`;
}
