// What the session is made of.

import type { TabProps } from "../pages/session";
import { fullTime } from "../parts/units";
import { visible } from "../parts/visible";

export function Details({ session }: TabProps) {
    const facts: [string, string][] = [
        ["State", session.state],
        ["Environment", session.environment],
        ["Image", session.image ?? ""],
        ["Provider", session.provider ?? ""],
        ["Worker", session.worker ?? ""],
        ["Thread", visible(session.thread_id ?? "")],
        ["Created", fullTime(session.created_at)],
        ...Object.entries(session.metadata).map(([name, value]): [string, string] => [visible(name), visible(value)]),
    ];
    return (
        <dl class="facts">
            {facts.filter(([, value]) => value).map(([name, value], at) => (
                <div key={at}>
                    <dt>{name}</dt>
                    <dd>{value}</dd>
                </div>
            ))}
        </dl>
    );
}
