// What the session is made of, and until when it lives.

import type { TabProps } from "../pages/session";
import { bytes, duration, fullTime } from "../parts/units";
import { visible } from "../parts/visible";
import type { Limits } from "../types";

export function Details({ session }: TabProps) {
    const isOver = session.state === "ended";
    return (
        <>
            <Facts
                of={[
                    ["State", session.state],
                    ["Environment", session.environment],
                    ["Image", session.image],
                    ["Provider", session.provider],
                    ["Worker", session.worker],
                    ["Thread", visible(session.thread_id ?? "")],
                    ["User, workspace", `${session.user}, ${session.workspace}`],
                    ["Created", fullTime(session.created_at)],
                    ["Ends when it is not used for", duration(session.idle_timeout_s)],
                    ["Ends in any case after", duration(session.max_lifetime_s)],
                    ["Ends at", !isOver && session.expires_at && `${fullTime(session.expires_at)}, if it is not used`],
                    ["Limits", session.limits && describeLimits(session.limits)],
                    ["Graphics processors", session.gpus.join(", ")],
                    ["Variables", session.env_names.map(visible).join(", ")],
                    ["Secrets", session.secrets.map(visible).join(", ")],
                    ["Agent", visible(session.agent ?? "")],
                ]}
            />
            <h2>Metadata</h2>
            {Object.keys(session.metadata).length === 0 && <p class="note">It has none.</p>}
            <Facts of={Object.entries(session.metadata).map(([name, value]) => [visible(name), visible(value)])} />
        </>
    );
}

function Facts({ of }: { of: [string, string | null | false][] }) {
    const known = of.filter(([, value]) => value);
    return (
        known.length > 0 && (
            <dl class="facts card">
                {known.map(([name, value], at) => (
                    <div key={at}>
                        <dt>{name}</dt>
                        <dd>{value}</dd>
                    </div>
                ))}
            </dl>
        )
    );
}

function describeLimits({ cpus, memory_mb, disk_mb, pids }: Limits): string {
    return `${cpus} CPU, ${bytes(memory_mb * 2 ** 20)} memory, ${bytes(disk_mb * 2 ** 20)} disk, ${pids} processes`;
}
