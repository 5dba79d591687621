// The audit record: a search over what was done.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

import { may } from "../account";
import { get } from "../api";
import { type Deed, DeedTable, type Page } from "../parts/deeds";
import { TextField } from "../parts/fields";
import { attempt, describe } from "../parts/messages";

export function Audit() {
    const all = may("audit");
    const since = useSignal("");
    const until = useSignal("");
    const session = useSignal("");
    const key = useSignal("");
    const action = useSignal("");
    const tenant = useSignal("");
    const found = useSignal<{ deeds: Deed[]; next: string | null } | null>(null);
    const error = useSignal("");
    const query = (after = "") => ({
        since: since.value && new Date(since.value).toISOString(),
        until: until.value && new Date(until.value).toISOString(),
        session_id: session.value.trim(),
        key_id: key.value.trim(),
        action: action.value.trim(),
        of: all ? tenant.value.trim() : "",
        after,
        limit: 100,
    });
    const load = (after = "") => get<Page>(all ? "/api/admin/audit" : "/api/audit", query(after));
    async function search(event?: Event) {
        event?.preventDefault();
        try {
            found.value = await load();
            error.value = "";
        } catch (failure) {
            error.value = describe(failure);
        }
    }
    useEffect(() => void search(), []); // the newest, until something is searched for
    const more = (after: string) =>
        attempt(async () => {
            const page = await load(after);
            found.value = { deeds: [...found.value!.deeds, ...page.deeds], next: page.next };
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
                {all && <TextField label="Tenant" value={tenant} placeholder="All" />}
                <button type="submit">Search</button>
            </form>
            {error.value && (
                <p class="note error" role="alert">
                    {error.value}
                </p>
            )}
            {found.value && (
                <>
                    <DeedTable
                        deeds={found.value.deeds}
                        withTenant={all}
                        empty="Nothing was done that this search finds."
                    />
                    {found.value.next && (
                        <button type="button" class="plain" onClick={() => more(found.value!.next!)}>
                            Older
                        </button>
                    )}
                </>
            )}
        </>
    );
}
