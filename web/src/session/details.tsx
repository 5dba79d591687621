// What the session is made of.

import type { TabProps } from "../pages/session";
import { fullTime } from "../parts/units";

export function Details({ session }: TabProps) {
    const facts: [string, string][] = [
        ["State", session.state],
        ["Environment", session.environment],
        ["Image", session.image ?? ""],
        ["Provider", session.provider ?? ""],
        ["Worker", session.worker ?? ""],
        ["Thread", session.thread_id ?? ""],
        ["Created", fullTime(session.created_at)],
    ];
    return (
        <dl class="facts">
            {facts.filter(([, value]) => value).map(([name, value]) => (
                <div key={name}>
                    <dt>{name}</dt>
                    <dd>{value}</dd>
                </div>
            ))}
        </dl>
    );
}
