// What the sandbox may reach, what it has reached, and what was refused.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

import { may } from "../account";
import { get, path, put } from "../api";
import { listen } from "../live";
import type { TabProps } from "../pages/session";
import { linesOf } from "../parts/fields";
import { gathered } from "../parts/gathered";
import { Shown, useLoaded } from "../parts/load";
import { attempt } from "../parts/messages";
import { Table } from "../parts/table";
import { bytes, shortTime } from "../parts/units";

interface Rules {
    internet: boolean;
    allow: string[];
    deny: string[];
}

interface Refusal {
    at: string;
    name: string;
    address: string;
    port: number;
    reason: string;
    rule: string;
    count: number;
}

interface Use extends Rules {
    bytes_sent: number;
    bytes_received: number;
    connections: number;
    open_connections: number;
    refused: number;
    refusals: Refusal[];
}

interface Refused extends Refusal {
    key: string;
}

const EVERY_MS = 10_000;

export function Network({ session, again }: TabProps) {
    const id = session.session_id;
    const address = path`/api/sessions/${id}/network`;
    const loaded = useLoaded((signal) => get<Use>(address, {}, signal), [id], EVERY_MS);
    useEffect(() => {
        const reload = gathered(loaded.again);
        const stop = listen((event) => {
            if (event.kind === "gap" || (event.kind === "network.refused" && event.data.session_id === id))
                reload.ask();
        });
        return () => {
            reload.stop();
            stop();
        };
    }, [id]);

    async function change(rules: Rules) {
        await put(address, rules);
        await loaded.again();
        await again();
    }
    /** Added to the rules as they are at this moment, which others may have changed. */
    const allow = (rule: string) =>
        attempt(async () => {
            const { internet, allow: allowed, deny } = await get<Use>(address);
            await change({ internet, allow: [...allowed.filter((one) => one !== rule), rule], deny });
        }, `${rule} is allowed`);

    return (
        <Shown of={loaded}>
            {(use) => (
                <>
                    <dl class="facts">
                        <div>
                            <dt>Sent</dt>
                            <dd>{bytes(use.bytes_sent)}</dd>
                        </div>
                        <div>
                            <dt>Received</dt>
                            <dd>{bytes(use.bytes_received)}</dd>
                        </div>
                        <div>
                            <dt>Connections</dt>
                            <dd>
                                {use.connections}, {use.open_connections} open now
                            </dd>
                        </div>
                        <div>
                            <dt>Refused</dt>
                            <dd aria-live="polite">{use.refused}</dd>
                        </div>
                    </dl>
                    <section aria-labelledby="refused">
                        <h2 id="refused">Refused lately</h2>
                        <Table
                            label="Refused connections"
                            rows={counted(use.refusals)}
                            keyOf={(one) => one.key}
                            empty={
                                use.internet || use.allow.length
                                    ? "Nothing was refused."
                                    : "The sandbox has no network. What it tries to reach is known only when it has one."
                            }
                            columns={[
                                { name: "Destination", show: (one) => destination(one) },
                                { name: "Why", show: (one) => one.reason },
                                { name: "Times", show: (one) => one.count, right: true },
                                { name: "Last", show: (one) => shortTime(one.at) },
                                {
                                    name: "Rule that allows it",
                                    show: (one) => <Allow refusal={one} rules={use} onAllow={allow} />,
                                },
                            ]}
                        />
                    </section>
                    <section aria-labelledby="rules">
                        <h2 id="rules">Rules</h2>
                        <RulesForm
                            key={JSON.stringify([use.internet, use.allow, use.deny])}
                            rules={use}
                            onChange={change}
                        />
                    </section>
                </>
            )}
        </Shown>
    );
}

function Allow({ refusal, rules, onAllow }: { refusal: Refused; rules: Rules; onAllow: (rule: string) => void }) {
    if (!refusal.rule) return <span class="note">none of a session can</span>;
    if (rules.allow.includes(refusal.rule)) return <span class="state allowed">allowed now</span>;
    return (
        <span class="actions">
            <code>{refusal.rule}</code>
            {may("sessions") && (
                <button
                    type="button"
                    class="small"
                    onClick={() => onAllow(refusal.rule)}
                    aria-label={`Allow ${refusal.rule}`}
                >
                    Allow this
                </button>
            )}
        </span>
    );
}

function destination({ name, address, port }: Refusal): string {
    return (name || address) + (port ? `:${port}` : "");
}

/** The same destination once, newest first, with how often it came. */
function counted(refusals: readonly Refusal[]): Refused[] {
    const found = new Map<string, Refused>();
    for (const refusal of refusals) {
        const key = JSON.stringify([destination(refusal), refusal.reason, refusal.rule]);
        const count = (found.get(key)?.count ?? 0) + refusal.count;
        found.delete(key);
        found.set(key, { ...refusal, key, count });
    }
    return [...found.values()].reverse();
}

function RulesForm({ rules, onChange }: { rules: Rules; onChange: (rules: Rules) => Promise<void> }) {
    const internet = useSignal(rules.internet);
    const allow = useSignal(rules.allow.join("\n"));
    const deny = useSignal(rules.deny.join("\n"));
    const locked = !may("sessions");
    function submit(event: Event) {
        event.preventDefault();
        attempt(
            () => onChange({ internet: internet.value, allow: linesOf(allow.value), deny: linesOf(deny.value) }),
            "The new rules hold",
        );
    }
    return (
        <form class="rules" onSubmit={submit}>
            <label class="inline">
                <input
                    type="checkbox"
                    checked={internet.value}
                    disabled={locked}
                    onChange={(event) => (internet.value = event.currentTarget.checked)}
                />
                Every public address, except what is denied
            </label>
            <div class="grid">
                <label>
                    Allowed, one in a line
                    <textarea
                        class="mono"
                        rows={6}
                        value={allow.value}
                        readonly={locked}
                        spellcheck={false}
                        onInput={(event) => (allow.value = event.currentTarget.value)}
                    />
                </label>
                <label>
                    Denied, one in a line
                    <textarea
                        class="mono"
                        rows={6}
                        value={deny.value}
                        readonly={locked}
                        spellcheck={false}
                        onInput={(event) => (deny.value = event.currentTarget.value)}
                    />
                </label>
            </div>
            <p class="note">
                A name (<code>api.example.com</code>), all names below one (<code>*.example.com</code>), a network (
                <code>10.1.2.0/24</code>), each with a port if only that is meant (<code>:443</code>), or{" "}
                <code>python-packages</code>, <code>node-packages</code>, <code>debian-packages</code>,{" "}
                <code>git-hosts</code>.
            </p>
            {!locked && <button type="submit">Change the rules</button>}
        </form>
    );
}
