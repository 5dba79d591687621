// What is set for tenants: quotas, and the policy for their commands.

import { useSignal } from "@preact/signals";

import { apiPath, get, put, remove } from "../api/client";
import type { TenantBody, TenantList, TenantView } from "../api/schemas";
import { TextAreaField, TextField } from "../components/fields";
import { ConfirmDialog, FormDialog } from "../components/form_dialog";
import { RequestView, useRequest } from "../components/request";
import { Table } from "../components/table";
import { formatValues } from "../lib/format";
import { parseJsonObject } from "../lib/json_input";
import { Quotas } from "../pages/usage";

const EMPTY: TenantView = { name: "", quota: {}, policy: {}, logs: "" };

export function Tenants() {
    const loaded = useRequest((signal) => get<TenantList>("/api/admin/tenants", {}, signal), []);
    const edited = useSignal<TenantView | null>(null);
    const removed = useSignal<TenantView | null>(null);
    const inspected = useSignal("");
    return (
        <>
            <div class="row">
                <button type="button" onClick={() => (edited.value = EMPTY)}>
                    Set something for a tenant
                </button>
            </div>
            <RequestView request={loaded}>
                {({ tenants }) => (
                    <Table
                        label="Tenants"
                        rows={tenants}
                        keyOf={(tenant) => tenant.name}
                        empty="Nothing is set for any tenant: all may use what the machine has."
                        columns={[
                            {
                                name: "Tenant",
                                render: (tenant) => (
                                    <strong>{tenant.name === "*" ? "* (all others)" : tenant.name}</strong>
                                ),
                            },
                            { name: "Quota", render: (tenant) => formatValues(tenant.quota) || "–" },
                            { name: "Command policy", render: (tenant) => formatValues(tenant.policy) || "–" },
                            {
                                name: "Actions",
                                render: (tenant) => (
                                    <span class="actions">
                                        {tenant.name !== "*" && (
                                            <button
                                                type="button"
                                                class="plain"
                                                onClick={() => (inspected.value = tenant.name)}
                                            >
                                                Use
                                            </button>
                                        )}
                                        <button type="button" class="plain" onClick={() => (edited.value = tenant)}>
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
            </RequestView>
            {inspected.value && <Quotas tenant={inspected.value} />}
            {edited.value && (
                <TenantDialog
                    tenant={edited.value}
                    onClose={() => (edited.value = null)}
                    onDone={() => {
                        edited.value = null;
                        loaded.reload();
                    }}
                />
            )}
            {removed.value && (
                <ConfirmDialog
                    title={`Take away what is set for ${removed.value.name}`}
                    action="Take it away"
                    onClose={() => (removed.value = null)}
                    onConfirm={() => remove(apiPath`/api/admin/tenants/${removed.value!.name}`).then(loaded.reload)}
                >
                    <p>Its keys and sessions stay. What is set for all others (*) holds for it from now on.</p>
                </ConfirmDialog>
            )}
        </>
    );
}

function TenantDialog({ tenant, onClose, onDone }: { tenant: TenantView; onClose: () => void; onDone: () => void }) {
    const name = useSignal(tenant.name);
    const quota = useSignal(JSON.stringify(tenant.quota, null, 1));
    const policy = useSignal(JSON.stringify(tenant.policy, null, 1));
    const logs = useSignal(tenant.logs);
    async function submit() {
        const body: TenantBody = {
            quota: parseJsonObject(quota.value, "The quota"),
            policy: parseJsonObject(policy.value, "The policy"),
            logs: logs.value,
        };
        await put(apiPath`/api/admin/tenants/${name.value}`, body);
        onDone();
    }
    return (
        <FormDialog
            title={tenant.name ? `Change ${tenant.name}` : "Set something for a tenant"}
            submitLabel="Save"
            onSubmit={submit}
            onClose={onClose}
        >
            {!tenant.name && (
                <TextField
                    label="Tenant"
                    value={name}
                    required
                    maxLength={64}
                    hint="* stands for all that have no entry of their own"
                />
            )}
            <TextAreaField
                label="Quota"
                value={quota}
                hint='JSON: {"sessions": 10, "requests_per_minute": 600, "exec_seconds_per_day": 3600}'
            />
            <TextAreaField label="Command policy" value={policy} hint='JSON: {"mode": "enforce", "deny": ["curl"]}' />
            <TextField
                label="Logs"
                value={logs}
                hint="at least: off, commands or output; empty: what the server says"
            />
        </FormDialog>
    );
}
