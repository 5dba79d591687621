// What is set for tenants: quotas, and the policy for their commands.

import { useSignal } from "@preact/signals";

import { get, path, put, remove } from "../api";
import { Quotas } from "../pages/usage";
import { Confirm } from "../parts/confirm";
import { Dialog } from "../parts/dialog";
import { LinesField, TextField } from "../parts/fields";
import { Shown, useLoaded } from "../parts/load";
import { describe } from "../parts/messages";
import { Table } from "../parts/table";
import { readObject } from "./objects";

interface Tenant {
    name: string;
    quota: Record<string, unknown>;
    policy: Record<string, unknown>;
}

const EMPTY: Tenant = { name: "", quota: {}, policy: {} };

export function Tenants() {
    const loaded = useLoaded((signal) => get<{ tenants: Tenant[] }>("/api/admin/tenants", {}, signal), []);
    const changed = useSignal<Tenant | null>(null);
    const removed = useSignal<Tenant | null>(null);
    const looked = useSignal("");
    return (
        <>
            <div class="row">
                <button type="button" onClick={() => (changed.value = EMPTY)}>
                    Set something for a tenant
                </button>
            </div>
            <Shown of={loaded}>
                {({ tenants }) => (
                    <Table
                        label="Tenants"
                        rows={tenants}
                        keyOf={(tenant) => tenant.name}
                        empty="Nothing is set for any tenant: all may use what the machine has."
                        columns={[
                            {
                                name: "Tenant",
                                show: (tenant) => (
                                    <strong>{tenant.name === "*" ? "* (all others)" : tenant.name}</strong>
                                ),
                            },
                            { name: "Quota", show: (tenant) => <Values of={tenant.quota} /> },
                            { name: "Command policy", show: (tenant) => <Values of={tenant.policy} /> },
                            {
                                name: "Actions",
                                show: (tenant) => (
                                    <span class="actions">
                                        {tenant.name !== "*" && (
                                            <button
                                                type="button"
                                                class="plain"
                                                onClick={() => (looked.value = tenant.name)}
                                            >
                                                Use
                                            </button>
                                        )}
                                        <button type="button" class="plain" onClick={() => (changed.value = tenant)}>
                                            Change
                                        </button>
                                        <button type="button" class="danger" onClick={() => (removed.value = tenant)}>
                                            Take away
                                        </button>
                                    </span>
                                ),
                            },
                        ]}
                    />
                )}
            </Shown>
            {looked.value && <Quotas of={looked.value} />}
            {changed.value && (
                <Change
                    tenant={changed.value}
                    onClose={() => (changed.value = null)}
                    onDone={() => {
                        changed.value = null;
                        loaded.again();
                    }}
                />
            )}
            {removed.value && (
                <Confirm
                    title={`Take away what is set for ${removed.value.name}`}
                    action="Take it away"
                    onClose={() => (removed.value = null)}
                    onConfirm={() => remove(path`/api/admin/tenants/${removed.value!.name}`).then(loaded.again)}
                >
                    <p>Its keys and sessions stay. What is set for all others (*) holds for it from now on.</p>
                </Confirm>
            )}
        </>
    );
}

function Values({ of }: { of: Record<string, unknown> }) {
    return (
        <>
            {Object.entries(of)
                .map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : String(value)}`)
                .join(", ") || "–"}
        </>
    );
}

function Change({ tenant, onClose, onDone }: { tenant: Tenant; onClose: () => void; onDone: () => void }) {
    const name = useSignal(tenant.name);
    const quota = useSignal(JSON.stringify(tenant.quota, null, 1));
    const policy = useSignal(JSON.stringify(tenant.policy, null, 1));
    const error = useSignal("");
    async function submit(event: Event) {
        event.preventDefault();
        try {
            const body = {
                quota: readObject(quota.value, "The quota"),
                policy: readObject(policy.value, "The policy"),
            };
            await put(path`/api/admin/tenants/${name.value}`, body);
            onDone();
        } catch (failure) {
            error.value = describe(failure);
        }
    }
    return (
        <Dialog title={tenant.name ? `Change ${tenant.name}` : "Set something for a tenant"} onClose={onClose}>
            <form onSubmit={submit}>
                {!tenant.name && (
                    <TextField
                        label="Tenant"
                        value={name}
                        required
                        maxLength={64}
                        hint="* stands for all that have no entry of their own"
                    />
                )}
                <LinesField
                    label="Quota"
                    value={quota}
                    hint='JSON: {"sessions": 10, "requests_per_minute": 600, "exec_seconds_per_day": 3600}'
                />
                <LinesField label="Command policy" value={policy} hint='JSON: {"mode": "enforce", "deny": ["curl"]}' />
                {error.value && (
                    <p class="note error" role="alert">
                        {error.value}
                    </p>
                )}
                <div class="buttons">
                    <button type="button" class="plain" onClick={onClose}>
                        Cancel
                    </button>
                    <button type="submit">Save</button>
                </div>
            </form>
        </Dialog>
    );
}
