// Webhooks, and their deliveries that have not succeeded.

import { useSignal } from "@preact/signals";

import { apiPath, get, post, remove } from "../api/client";
import type { DeliveryList, NewWebhookView, PingView, WebhookBody, WebhookList, WebhookView } from "../api/schemas";
import { TextField } from "../components/fields";
import { ConfirmDialog, FormDialog } from "../components/form_dialog";
import { notify, runAction } from "../components/notifications";
import { RequestView, useRequest } from "../components/request";
import { Table } from "../components/table";
import { formatDateTime } from "../lib/format";
import { SecretDialog } from "./secret_dialog";

export function Webhooks() {
    const loaded = useRequest((signal) => get<WebhookList>("/api/webhooks", {}, signal), []);
    const isCreating = useSignal(false);
    const dialog = useSignal<{ hook: WebhookView; kind: "delete" | "rotate" } | null>(null);
    const inspected = useSignal<WebhookView | null>(null);
    const secret = useSignal("");
    const test = (hook: WebhookView) =>
        runAction(async () => {
            const outcome = await post<PingView>(apiPath`/api/webhooks/${hook.id}/test`);
            notify(
                outcome.delivered
                    ? `Delivered: the receiver answered ${outcome.status}`
                    : `Not delivered: ${outcome.error}`,
                outcome.delivered ? "done" : "error",
            );
        });
    return (
        <>
            <div class="row">
                <button type="button" onClick={() => (isCreating.value = true)}>
                    New webhook
                </button>
            </div>
            <RequestView request={loaded}>
                {({ webhooks }) => (
                    <Table
                        label="Webhooks"
                        rows={webhooks}
                        keyOf={(hook) => hook.id}
                        empty="There is no webhook."
                        columns={[
                            {
                                name: "Address",
                                render: (hook) => (
                                    <>
                                        <span class="mono">{hook.url}</span>{" "}
                                        <span class="note">{hook.description}</span>
                                    </>
                                ),
                            },
                            {
                                name: "Events",
                                render: (hook) => (hook.events.includes("*") ? "all" : hook.events.join(", ")),
                            },
                            {
                                name: "State",
                                render: (hook) => (
                                    <span
                                        class={`state ${hook.disabled ? "failed" : "ok"}`}
                                        title={hook.disabled ?? ""}
                                    >
                                        {hook.disabled ? `disabled: ${hook.disabled}` : "on"}
                                    </span>
                                ),
                            },
                            { name: "Made", render: (hook) => formatDateTime(hook.created_at) },
                            {
                                name: "Actions",
                                render: (hook) => (
                                    <span class="actions">
                                        <button type="button" class="plain" onClick={() => (inspected.value = hook)}>
                                            Deliveries
                                        </button>
                                        <button type="button" class="plain" onClick={() => test(hook)}>
                                            Test
                                        </button>
                                        <button
                                            type="button"
                                            class="plain"
                                            onClick={() => (dialog.value = { hook, kind: "rotate" })}
                                        >
                                            New secret
                                        </button>
                                        <button
                                            type="button"
                                            class="danger"
                                            onClick={() => (dialog.value = { hook, kind: "delete" })}
                                        >
                                            Delete
                                        </button>
                                    </span>
                                ),
                            },
                        ]}
                    />
                )}
            </RequestView>
            {inspected.value && <Deliveries key={inspected.value.id} hook={inspected.value} />}
            {isCreating.value && (
                <NewWebhookDialog
                    onClose={() => (isCreating.value = false)}
                    onMade={(text) => {
                        isCreating.value = false;
                        secret.value = text;
                        loaded.reload();
                    }}
                />
            )}
            {dialog.value?.kind === "delete" && (
                <ConfirmDialog
                    title="Delete the webhook"
                    action="Delete it"
                    onClose={() => (dialog.value = null)}
                    onConfirm={() => remove(apiPath`/api/webhooks/${dialog.value!.hook.id}`).then(loaded.reload)}
                >
                    <p>
                        What waits to be delivered to <span class="mono">{dialog.value.hook.url}</span> is dropped.
                    </p>
                </ConfirmDialog>
            )}
            {dialog.value?.kind === "rotate" && (
                <ConfirmDialog
                    title="New secret for the webhook"
                    action="Make a new secret"
                    onClose={() => (dialog.value = null)}
                    onConfirm={async () => {
                        secret.value = (
                            await post<NewWebhookView>(apiPath`/api/webhooks/${dialog.value!.hook.id}/rotate`)
                        ).secret;
                    }}
                >
                    <p>The old one signs as well for another day, so that the receiver can change over.</p>
                </ConfirmDialog>
            )}
            {secret.value && (
                <SecretDialog
                    title="The secret of the webhook"
                    text={secret.value}
                    onClose={() => (secret.value = "")}
                />
            )}
        </>
    );
}

function Deliveries({ hook }: { hook: WebhookView }) {
    const loaded = useRequest(
        (signal) => get<DeliveryList>(apiPath`/api/webhooks/${hook.id}/deliveries`, {}, signal),
        [hook.id],
        5000,
    );
    return (
        <section aria-labelledby="deliveries">
            <h2 id="deliveries">Not delivered to {hook.url}</h2>
            <RequestView request={loaded}>
                {({ deliveries }) => (
                    <Table
                        label="Deliveries"
                        rows={deliveries}
                        keyOf={(delivery) => delivery.id}
                        empty="Everything was delivered. Successful deliveries are not kept."
                        columns={[
                            { name: "Event", render: (delivery) => delivery.type },
                            {
                                name: "State",
                                render: (delivery) => (
                                    <span class={`state ${delivery.state === "failed" ? "failed" : "pending"}`}>
                                        {delivery.state}
                                    </span>
                                ),
                            },
                            { name: "Attempts", right: true, render: (delivery) => delivery.attempts },
                            {
                                name: "Last attempt",
                                render: (delivery) =>
                                    delivery.attempted_at ? formatDateTime(delivery.attempted_at) : "–",
                            },
                            {
                                name: "Next",
                                render: (delivery) =>
                                    delivery.next_attempt_at ? formatDateTime(delivery.next_attempt_at) : "–",
                            },
                            {
                                name: "Answer",
                                render: (delivery) => [delivery.status, delivery.error].filter(Boolean).join(" "),
                            },
                        ]}
                    />
                )}
            </RequestView>
        </section>
    );
}

function NewWebhookDialog({ onClose, onMade }: { onClose: () => void; onMade: (secret: string) => void }) {
    const url = useSignal("");
    const events = useSignal("*");
    const description = useSignal("");
    async function submit() {
        const body: WebhookBody = {
            url: url.value.trim(),
            events: events.value.split(/[\s,]+/).filter(Boolean),
            description: description.value,
        };
        onMade((await post<NewWebhookView>("/api/webhooks", body)).secret);
    }
    return (
        <FormDialog title="New webhook" submitLabel="Make the webhook" onSubmit={submit} onClose={onClose}>
            <TextField label="Address" value={url} required placeholder="https://example.com/hooks" />
            <TextField
                label="Events"
                value={events}
                required
                hint="* for all, or some: session.ended, session.paused, snapshot.created, volume.attached …"
            />
            <TextField label="Description" value={description} />
        </FormDialog>
    );
}
