// Searches the audit record.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

import { get } from "../api/client";
import type { DeedPage } from "../api/schemas";
import { hasScope } from "../auth/account";
import { AuditTable } from "../components/audit_table";
import { ErrorNote } from "../components/error_note";
import { TextField } from "../components/fields";
import { errorMessage, runAction } from "../components/notifications";

export function Audit() {
    const allTenants = hasScope("audit");
    const since = useSignal("");
    const until = useSignal("");
    const session = useSignal("");
    const key = useSignal("");
    const action = useSignal("");
    const tenant = useSignal("");
    const result = useSignal<DeedPage | null>(null);
    const error = useSignal("");
    const query = (after = "") => ({
        since: since.value && new Date(since.value).toISOString(),
        until: until.value && new Date(until.value).toISOString(),
        session_id: session.value.trim(),
        key_id: key.value.trim(),
        action: action.value.trim(),
        of: allTenants ? tenant.value.trim() : "",
        after,
        limit: 100,
    });
    const load = (after = "") => get<DeedPage>(allTenants ? "/api/admin/audit" : "/api/audit", query(after));
    async function search(event?: Event) {
        event?.preventDefault();
        try {
            result.value = await load();
            error.value = "";
        } catch (failure) {
            error.value = errorMessage(failure);
        }
    }
    useEffect(() => void search(), []); // shows the newest until something is searched for
    const loadOlder = (after: string) =>
        runAction(async () => {
            const page = await load(after);
            result.value = { deeds: [...result.value!.deeds, ...page.deeds], next: page.next };
        });
    return (
        <>
            <form class="row" onSubmit={search}>
                <label>
                    From
                    <input
                        type="datetime-local"
                        value={since.value}
                        onInput={(event) => (since.value = event.currentTarget.value)}
                    />
                </label>
                <label>
                    Until
                    <input
                        type="datetime-local"
                        value={until.value}
                        onInput={(event) => (until.value = event.currentTarget.value)}
                    />
                </label>
                <TextField label="Session" value={session} />
                <TextField label="Key" value={key} />
                <TextField label="Action" value={action} placeholder="run_command" />
                {allTenants && <TextField label="Tenant" value={tenant} placeholder="All" />}
                <button type="submit">Search</button>
            </form>
            <ErrorNote text={error.value} />
            {result.value && (
                <>
                    <AuditTable
                        entries={result.value.deeds}
                        withTenant={allTenants}
                        empty="Nothing was done that this search finds."
                    />
                    {result.value.next && (
                        <button type="button" class="plain" onClick={() => loadOlder(result.value!.next!)}>
                            Older
                        </button>
                    )}
                </>
            )}
        </>
    );
}
