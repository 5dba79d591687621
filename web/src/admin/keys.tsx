// The keys of the server: who may do what, and until when.

import { useSignal } from "@preact/signals";

import { get, path, post, remove } from "../api";
import { Confirm } from "../parts/confirm";
import { Dialog } from "../parts/dialog";
import { NumberField, TextField } from "../parts/fields";
import { Shown, useLoaded } from "../parts/load";
import { describe } from "../parts/messages";
import { Table } from "../parts/table";
import { fullTime } from "../parts/units";
import { readObject } from "./objects";
import { Secret } from "./secret";

interface Key {
    id: string;
    name: string;
    tenant: string;
    scopes: string[];
    created_at: string;
    expires_at: string | null;
    used_at: string | null;
    quota: Record<string, unknown>;
}

const SCOPES: readonly [string, string][] = [
    ["read", "look at sessions, processes and figures"],
    ["exec", "run commands, code and terminals"],
    ["files", "read and write files and artifacts"],
    ["sessions", "create, change and end sessions; webhooks"],
    ["audit", "read the record and the usage of all tenants"],
    ["metrics", "read the metrics for Prometheus"],
    ["admin", "everything, of all tenants"],
];
const USUAL = ["read", "exec", "files", "sessions"];
const DAY_S = 86_400;

export function Keys() {
    const loaded = useLoaded((signal) => get<{ keys: Key[] }>("/api/admin/keys", {}, signal), []);
    const making = useSignal(false);
    const asked = useSignal<{ key: Key; what: "revoke" | "rotate" } | null>(null);
    const secret = useSignal("");
    return (
        <>
            <div class="row">
                <button type="button" onClick={() => (making.value = true)}>
                    New key
                </button>
            </div>
            <Shown of={loaded}>
                {({ keys }) => (
                    <Table
                        label="Keys"
                        rows={keys}
                        keyOf={(key) => key.id}
                        empty="There is no key."
                        columns={[
                            {
                                name: "Name",
                                show: (key) => (
                                    <>
                                        <strong>{key.name}</strong> <span class="note mono">{key.id}</span>
                                    </>
                                ),
                            },
                            { name: "Tenant", show: (key) => key.tenant },
                            { name: "May", show: (key) => key.scopes.join(", ") },
                            { name: "Made", show: (key) => fullTime(key.created_at) },
                            { name: "Used", show: (key) => (key.used_at ? fullTime(key.used_at) : "never") },
                            { name: "Ends", show: (key) => (key.expires_at ? fullTime(key.expires_at) : "never") },
                            {
                                name: "Quota",
                                show: (key) =>
                                    Object.entries(key.quota)
                                        .map(([name, value]) => `${name} ${JSON.stringify(value)}`)
                                        .join(", "),
                            },
                            {
                                name: "Actions",
                                show: (key) => (
                                    <span class="actions">
                                        <button
                                            type="button"
                                            class="plain small"
                                            aria-label={`New secret for ${key.name}`}
                                            onClick={() => (asked.value = { key, what: "rotate" })}
                                        >
                                            New secret
                                        </button>
                                        <button
                                            type="button"
                                            class="danger small"
                                            aria-label={`Revoke ${key.name}`}
                                            onClick={() => (asked.value = { key, what: "revoke" })}
                                        >
                                            Revoke
                                        </button>
                                    </span>
                                ),
                            },
                        ]}
                    />
                )}
            </Shown>
            {making.value && (
                <NewKey
                    onClose={() => (making.value = false)}
                    onMade={(key) => {
                        making.value = false;
                        secret.value = key;
                        loaded.again();
                    }}
                />
            )}
            {asked.value?.what === "revoke" && (
                <Confirm
                    title={`Revoke ${asked.value.key.name}`}
                    action="Revoke it"
                    onClose={() => (asked.value = null)}
                    onConfirm={() => remove(path`/api/admin/keys/${asked.value!.key.id}`).then(loaded.again)}
                >
                    <p>
                        Programs that use it are refused from now on, and browsers that signed in with it are signed
                        out. This cannot be undone.
                    </p>
                </Confirm>
            )}
            {asked.value?.what === "rotate" && (
                <Confirm
                    title={`New secret for ${asked.value.key.name}`}
                    action="Make a new secret"
                    onClose={() => (asked.value = null)}
                    onConfirm={async () => {
                        secret.value = (
                            await post<{ key: string }>(path`/api/admin/keys/${asked.value!.key.id}/rotate`)
                        ).key;
                        loaded.again();
                    }}
                >
                    <p>The old one stops working at once; what the key may do stays.</p>
                </Confirm>
            )}
            {secret.value && <Secret title="The key" text={secret.value} onClose={() => (secret.value = "")} />}
        </>
    );
}

function NewKey({ onClose, onMade }: { onClose: () => void; onMade: (key: string) => void }) {
    const name = useSignal("");
    const tenant = useSignal("default");
    const days = useSignal("");
    const quota = useSignal("");
    const scopes = useSignal<readonly string[]>(USUAL);
    const error = useSignal("");
    async function submit(event: Event) {
        event.preventDefault();
        try {
            const body = {
                name: name.value,
                tenant: tenant.value,
                scopes: scopes.value,
                expires_in_s: days.value ? Number(days.value) * DAY_S : null,
                quota: readObject(quota.value, "The quota"),
            };
            onMade((await post<{ key: string }>("/api/admin/keys", body)).key);
        } catch (failure) {
            error.value = describe(failure);
        }
    }
    return (
        <Dialog title="New key" onClose={onClose}>
            <form onSubmit={submit}>
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
                {error.value && (
                    <p class="note error" role="alert">
                        {error.value}
                    </p>
                )}
                <div class="buttons">
                    <button type="button" class="plain" onClick={onClose}>
                        Cancel
                    </button>
                    <button type="submit">Make the key</button>
                </div>
            </form>
        </Dialog>
    );
}
