// Webhooks: who is told of events, and what could not be delivered.

import { useSignal } from "@preact/signals";

import { get, path, post, remove } from "../api";
import { Confirm } from "../parts/confirm";
import { Dialog } from "../parts/dialog";
import { TextField } from "../parts/fields";
import { Shown, useLoaded } from "../parts/load";
import { attempt, describe, tell } from "../parts/messages";
import { Table } from "../parts/table";
import { fullTime } from "../parts/units";
import { Secret } from "./secret";

interface Webhook {
    id: string;
    url: string;
    events: string[];
    description: string;
    created_at: string;
    disabled: string | null;
}

interface Delivery {
    id: string;
    type: string;
    state: string;
    attempts: number;
    created_at: string;
    attempted_at: string | null;
    next_attempt_at: string | null;
    status: number | null;
    error: string;
}

interface Ping {
    delivered: boolean;
    status: number | null;
    error: string;
}

export function Webhooks() {
    const loaded = useLoaded((signal) => get<{ webhooks: Webhook[] }>("/api/webhooks", {}, signal), []);
    const making = useSignal(false);
    const asked = useSignal<{ hook: Webhook; what: "delete" | "rotate" } | null>(null);
    const looked = useSignal<Webhook | null>(null);
    const secret = useSignal("");
    const test = (hook: Webhook) =>
        attempt(async () => {
            const outcome = await post<Ping>(path`/api/webhooks/${hook.id}/test`);
            tell(
                outcome.delivered
                    ? `Delivered: the receiver answered ${outcome.status}`
                    : `Not delivered: ${outcome.error}`,
                outcome.delivered ? "done" : "error",
            );
        });
    return (
        <>
            <div class="row">
                <button type="button" onClick={() => (making.value = true)}>
                    New webhook
                </button>
            </div>
            <Shown of={loaded}>
                {({ webhooks }) => (
                    <Table
                        label="Webhooks"
                        rows={webhooks}
                        keyOf={(hook) => hook.id}
                        empty="There is no webhook."
                        columns={[
                            {
                                name: "Address",
                                show: (hook) => (
                                    <>
                                        <span class="mono">{hook.url}</span>{" "}
                                        <span class="note">{hook.description}</span>
                                    </>
                                ),
                            },
                            {
                                name: "Events",
                                show: (hook) => (hook.events.includes("*") ? "all" : hook.events.join(", ")),
                            },
                            {
                                name: "State",
                                show: (hook) => (
                                    <span
                                        class={`state ${hook.disabled ? "failed" : "ok"}`}
                                        title={hook.disabled ?? ""}
                                    >
                                        {hook.disabled ? `disabled: ${hook.disabled}` : "on"}
                                    </span>
                                ),
                            },
                            { name: "Made", show: (hook) => fullTime(hook.created_at) },
                            {
                                name: "Actions",
                                show: (hook) => (
                                    <span class="actions">
                                        <button type="button" class="plain" onClick={() => (looked.value = hook)}>
                                            Deliveries
                                        </button>
                                        <button type="button" class="plain" onClick={() => test(hook)}>
                                            Test
                                        </button>
                                        <button
                                            type="button"
                                            class="plain"
                                            onClick={() => (asked.value = { hook, what: "rotate" })}
                                        >
                                            New secret
                                        </button>
                                        <button
                                            type="button"
                                            class="danger"
                                            onClick={() => (asked.value = { hook, what: "delete" })}
                                        >
                                            Delete
                                        </button>
                                    </span>
                                ),
                            },
                        ]}
                    />
                )}
            </Shown>
            {looked.value && <Deliveries key={looked.value.id} hook={looked.value} />}
            {making.value && (
                <NewWebhook
                    onClose={() => (making.value = false)}
                    onMade={(text) => {
                        making.value = false;
                        secret.value = text;
                        loaded.again();
                    }}
                />
            )}
            {asked.value?.what === "delete" && (
                <Confirm
                    title="Delete the webhook"
                    action="Delete it"
                    onClose={() => (asked.value = null)}
                    onConfirm={() => remove(path`/api/webhooks/${asked.value!.hook.id}`).then(loaded.again)}
                >
                    <p>
                        What waits to be delivered to <span class="mono">{asked.value.hook.url}</span> is dropped.
                    </p>
                </Confirm>
            )}
            {asked.value?.what === "rotate" && (
                <Confirm
                    title="New secret for the webhook"
                    action="Make a new secret"
                    onClose={() => (asked.value = null)}
                    onConfirm={async () => {
                        secret.value = (
                            await post<{ secret: string }>(path`/api/webhooks/${asked.value!.hook.id}/rotate`)
                        ).secret;
                    }}
                >
                    <p>The old one signs as well for another day, so that the receiver can change over.</p>
                </Confirm>
            )}
            {secret.value && (
                <Secret title="The secret of the webhook" text={secret.value} onClose={() => (secret.value = "")} />
            )}
        </>
    );
}

function Deliveries({ hook }: { hook: Webhook }) {
    const loaded = useLoaded(
        (signal) => get<{ deliveries: Delivery[] }>(path`/api/webhooks/${hook.id}/deliveries`, {}, signal),
        [hook.id],
        5000,
    );
    return (
        <section aria-labelledby="deliveries">
            <h2 id="deliveries">Not delivered to {hook.url}</h2>
            <Shown of={loaded}>
                {({ deliveries }) => (
                    <Table
                        label="Deliveries"
                        rows={deliveries}
                        keyOf={(one) => one.id}
                        empty="Everything was delivered. Successful deliveries are not kept."
                        columns={[
                            { name: "Event", show: (one) => one.type },
                            {
                                name: "State",
                                show: (one) => (
                                    <span class={`state ${one.state === "failed" ? "failed" : "pending"}`}>
                                        {one.state}
                                    </span>
                                ),
                            },
                            { name: "Attempts", right: true, show: (one) => one.attempts },
                            {
                                name: "Last attempt",
                                show: (one) => (one.attempted_at ? fullTime(one.attempted_at) : "–"),
                            },
                            {
                                name: "Next",
                                show: (one) => (one.next_attempt_at ? fullTime(one.next_attempt_at) : "–"),
                            },
                            { name: "Answer", show: (one) => [one.status, one.error].filter(Boolean).join(" ") },
                        ]}
                    />
                )}
            </Shown>
        </section>
    );
}

function NewWebhook({ onClose, onMade }: { onClose: () => void; onMade: (secret: string) => void }) {
    const url = useSignal("");
    const events = useSignal("*");
    const description = useSignal("");
    const error = useSignal("");
    async function submit(event: Event) {
        event.preventDefault();
        try {
            const body = {
                url: url.value.trim(),
                events: events.value.split(/[\s,]+/).filter(Boolean),
                description: description.value,
            };
            onMade((await post<{ secret: string }>("/api/webhooks", body)).secret);
        } catch (failure) {
            error.value = describe(failure);
        }
    }
    return (
        <Dialog title="New webhook" onClose={onClose}>
            <form onSubmit={submit}>
                <TextField label="Address" value={url} required placeholder="https://example.com/hooks" />
                <TextField
                    label="Events"
                    value={events}
                    required
                    hint="* for all, or some: session.ended, command.refused, resource.high …"
                />
                <TextField label="Description" value={description} />
                {error.value && (
                    <p class="note error" role="alert">
                        {error.value}
                    </p>
                )}
                <div class="buttons">
                    <button type="button" class="plain" onClick={onClose}>
                        Cancel
                    </button>
                    <button type="submit">Make the webhook</button>
                </div>
            </form>
        </Dialog>
    );
}
