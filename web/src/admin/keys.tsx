// API keys: who may do what, and until when.

import { useSignal } from "@preact/signals";

import { apiPath, get, post, remove } from "../api/client";
import type { KeyBody, KeyList, KeyView, NewKeyView } from "../api/schemas";
import { NumberField, TextField } from "../components/fields";
import { ConfirmDialog, FormDialog } from "../components/form_dialog";
import { RequestView, useRequest } from "../components/request";
import { Table } from "../components/table";
import { formatDateTime, formatValues } from "../lib/format";
import { parseJsonObject } from "../lib/json_input";
import { SecretDialog } from "./secret_dialog";

const SCOPES: readonly [string, string][] = [
    ["read", "look at sessions, processes and figures"],
    ["exec", "run commands, code and terminals"],
    ["files", "read and write files and artifacts"],
    ["sessions", "create, change and end sessions; webhooks"],
    ["audit", "read the record and the usage of all tenants"],
    ["metrics", "read the metrics for Prometheus"],
    ["admin", "everything, of all tenants"],
];
const DEFAULT_SCOPES = ["read", "exec", "files", "sessions"];
const DAY_S = 86_400;

export function Keys() {
    const loaded = useRequest((signal) => get<KeyList>("/api/admin/keys", {}, signal), []);
    const isCreating = useSignal(false);
    const dialog = useSignal<{ key: KeyView; kind: "revoke" | "rotate" } | null>(null);
    const secret = useSignal("");
    return (
        <>
            <div class="row">
                <button type="button" onClick={() => (isCreating.value = true)}>
                    New key
                </button>
            </div>
            <RequestView request={loaded}>
                {({ keys }) => (
                    <Table
                        label="Keys"
                        rows={keys}
                        keyOf={(key) => key.id}
                        empty="There is no key."
                        columns={[
                            {
                                name: "Name",
                                render: (key) => (
                                    <>
                                        <strong>{key.name}</strong> <span class="note mono">{key.id}</span>
                                    </>
                                ),
                            },
                            { name: "Tenant", render: (key) => key.tenant },
                            { name: "May", render: (key) => key.scopes.join(", ") },
                            { name: "Made", render: (key) => formatDateTime(key.created_at) },
                            { name: "Used", render: (key) => (key.used_at ? formatDateTime(key.used_at) : "never") },
                            {
                                name: "Ends",
                                render: (key) => (key.expires_at ? formatDateTime(key.expires_at) : "never"),
                            },
                            {
                                name: "Quota",
                                render: (key) => formatValues(key.quota),
                            },
                            {
                                name: "Actions",
                                render: (key) => (
                                    <span class="actions">
                                        <button
                                            type="button"
                                            class="plain small"
                                            aria-label={`New secret for ${key.name}`}
                                            onClick={() => (dialog.value = { key, kind: "rotate" })}
                                        >
                                            New secret
                                        </button>
                                        <button
                                            type="button"
                                            class="danger small"
                                            aria-label={`Revoke ${key.name}`}
                                            onClick={() => (dialog.value = { key, kind: "revoke" })}
                                        >
                                            Revoke
                                        </button>
                                    </span>
                                ),
                            },
                        ]}
                    />
                )}
            </RequestView>
            {isCreating.value && (
                <NewKeyDialog
                    onClose={() => (isCreating.value = false)}
                    onMade={(key) => {
                        isCreating.value = false;
                        secret.value = key;
                        loaded.reload();
                    }}
                />
            )}
            {dialog.value?.kind === "revoke" && (
                <ConfirmDialog
                    title={`Revoke ${dialog.value.key.name}`}
                    action="Revoke it"
                    onClose={() => (dialog.value = null)}
                    onConfirm={() => remove(apiPath`/api/admin/keys/${dialog.value!.key.id}`).then(loaded.reload)}
                >
                    <p>
                        Programs that use it are refused from now on, and browsers that signed in with it are signed
                        out. This cannot be undone.
                    </p>
                </ConfirmDialog>
            )}
            {dialog.value?.kind === "rotate" && (
                <ConfirmDialog
                    title={`New secret for ${dialog.value.key.name}`}
                    action="Make a new secret"
                    onClose={() => (dialog.value = null)}
                    onConfirm={async () => {
                        secret.value = (
                            await post<NewKeyView>(apiPath`/api/admin/keys/${dialog.value!.key.id}/rotate`)
                        ).key;
                        loaded.reload();
                    }}
                >
                    <p>The old one stops working at once; what the key may do stays.</p>
                </ConfirmDialog>
            )}
            {secret.value && <SecretDialog title="The key" text={secret.value} onClose={() => (secret.value = "")} />}
        </>
    );
}

function NewKeyDialog({ onClose, onMade }: { onClose: () => void; onMade: (key: string) => void }) {
    const name = useSignal("");
    const tenant = useSignal("default");
    const days = useSignal("");
    const quota = useSignal("");
    const scopes = useSignal<readonly string[]>(DEFAULT_SCOPES);
    async function submit() {
        const body: KeyBody = {
            name: name.value,
            tenant: tenant.value,
            scopes: [...scopes.value],
            expires_in_s: days.value ? Number(days.value) * DAY_S : null,
            quota: parseJsonObject(quota.value, "The quota"),
        };
        onMade((await post<NewKeyView>("/api/admin/keys", body)).key);
    }
    return (
        <FormDialog title="New key" submitLabel="Make the key" onSubmit={submit} onClose={onClose}>
            <TextField label="Name" value={name} required maxLength={128} hint="For people: who or what uses it" />
            <TextField label="Tenant" value={tenant} required maxLength={64} />
            <fieldset>
                <legend>It may</legend>
                {SCOPES.map(([scope, meaning]) => (
                    <label key={scope} class="inline">
                        <input
                            type="checkbox"
                            checked={scopes.value.includes(scope)}
                            onChange={(event) =>
                                (scopes.value = event.currentTarget.checked
                                    ? [...scopes.value, scope]
                                    : scopes.value.filter((one) => one !== scope))
                            }
                        />
                        <span>
                            <strong>{scope}</strong>: {meaning}
                        </span>
                    </label>
                ))}
            </fieldset>
            <NumberField label="Valid for so many days" value={days} hint="Empty: until it is revoked" />
            <TextField
                label="Quota"
                value={quota}
                hint='JSON, such as {"sessions": 5}; empty: none but the tenant&apos;s'
            />
        </FormDialog>
    );
}
