// The network of a session: its rules, its use, and the connections that were refused.

import { useSignal } from "@preact/signals";

import { apiPath, get, put } from "../api/client";
import type { NetworkUseView, NetworkView } from "../api/schemas";
import { hasScope } from "../auth/account";
import { Fact } from "../components/facts";
import { CheckboxField } from "../components/fields";
import { runAction } from "../components/notifications";
import { RequestView, useReloadOnEvents, useRequest } from "../components/request";
import { Table } from "../components/table";
import { formatBytes, formatTime, splitLines } from "../lib/format";
import type { TabProps } from "../pages/session";
import { destinationOf, groupRefusals, type RefusalGroup } from "./refusals";

const INTERVAL_MS = 10_000;

export function NetworkTab({ session, reload }: TabProps) {
    const id = session.session_id;
    const url = apiPath`/api/sessions/${id}/network`;
    const loaded = useRequest((signal) => get<NetworkUseView>(url, {}, signal), [id], INTERVAL_MS);
    useReloadOnEvents(loaded.reload, (event) => event.kind === "network.refused" && event.data.session_id === id, [id]);

    async function changeRules(rules: NetworkView) {
        await put(url, rules);
        await loaded.reload();
        await reload();
    }
    /** Adds to the rules as they are at this moment: others may have changed them since they were loaded. */
    const allow = (rule: string) =>
        runAction(async () => {
            const { internet, allow: allowed, deny } = await get<NetworkUseView>(url);
            await changeRules({ internet, allow: [...allowed.filter((other) => other !== rule), rule], deny });
        }, `${rule} is allowed`);

    return (
        <RequestView request={loaded}>
            {(use) => (
                <>
                    <dl class="facts">
                        <Fact name="Sent">{formatBytes(use.bytes_sent)}</Fact>
                        <Fact name="Received">{formatBytes(use.bytes_received)}</Fact>
                        <Fact name="Connections">
                            {use.connections}, {use.open_connections} open now
                        </Fact>
                        <div>
                            <dt>Refused</dt>
                            <dd aria-live="polite">{use.refused}</dd>
                        </div>
                    </dl>
                    <section aria-labelledby="refused">
                        <h2 id="refused">Refused lately</h2>
                        <Table
                            label="Refused connections"
                            rows={groupRefusals(use.refusals)}
                            keyOf={(refusal) => refusal.key}
                            empty={
                                use.internet || use.allow.length
                                    ? "Nothing was refused."
                                    : "The sandbox has no network. What it tries to reach is known only when it has one."
                            }
                            columns={[
                                { name: "Destination", render: (refusal) => destinationOf(refusal) },
                                { name: "Why", render: (refusal) => refusal.reason },
                                { name: "Times", render: (refusal) => refusal.count, right: true },
                                { name: "Last", render: (refusal) => formatTime(refusal.at) },
                                {
                                    name: "Rule that allows it",
                                    render: (refusal) => <AllowButton refusal={refusal} rules={use} onAllow={allow} />,
                                },
                            ]}
                        />
                    </section>
                    <section aria-labelledby="rules">
                        <h2 id="rules">Rules</h2>
                        <RulesForm
                            key={JSON.stringify([use.internet, use.allow, use.deny])}
                            rules={use}
                            onChange={changeRules}
                        />
                    </section>
                </>
            )}
        </RequestView>
    );
}

function AllowButton({
    refusal,
    rules,
    onAllow,
}: {
    refusal: RefusalGroup;
    rules: NetworkView;
    onAllow: (rule: string) => void;
}) {
    if (!refusal.rule) return <span class="note">none of a session can</span>;
    if (rules.allow.includes(refusal.rule)) return <span class="state allowed">allowed now</span>;
    return (
        <span class="actions">
            <code>{refusal.rule}</code>
            {hasScope("sessions") && (
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

function RulesForm({ rules, onChange }: { rules: NetworkView; onChange: (rules: NetworkView) => Promise<void> }) {
    const internet = useSignal(rules.internet);
    const allow = useSignal(rules.allow.join("\n"));
    const deny = useSignal(rules.deny.join("\n"));
    const isReadOnly = !hasScope("sessions");
    function submit(event: Event) {
        event.preventDefault();
        runAction(
            () => onChange({ internet: internet.value, allow: splitLines(allow.value), deny: splitLines(deny.value) }),
            "The new rules hold",
        );
    }
    return (
        <form class="rules" onSubmit={submit}>
            <CheckboxField
                label="Every public address, except what is denied"
                checked={internet.value}
                disabled={isReadOnly}
                onChange={(checked) => (internet.value = checked)}
            />
            <div class="grid">
                <label>
                    Allowed, one in a line
                    <textarea
                        class="mono"
                        rows={6}
                        value={allow.value}
                        readonly={isReadOnly}
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
                        readonly={isReadOnly}
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
            {!isReadOnly && <button type="submit">Change the rules</button>}
        </form>
    );
}
