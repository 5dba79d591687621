// Who you are to the server, and the way out.

import { useSignal } from "@preact/signals";

import { account, facts, memoryKey } from "../account";
import { allowed } from "../pages";
import { Confirm } from "../parts/confirm";
import { attempt } from "../parts/messages";
import { useTitle } from "../parts/title";
import { duration, fullTime, secondsUntil } from "../parts/units";
import { signOut } from "../signing";

export function AccountPage() {
    useTitle("Account");
    const asking = useSignal(false);
    const { tenant, key_id, scopes, expires_at } = account.value!;
    const { mode, version, cluster } = facts.value!;
    return (
        <section aria-labelledby="title">
            <h1 id="title">Account</h1>
            <dl class="facts card">
                <div>
                    <dt>Tenant</dt>
                    <dd>{tenant}</dd>
                </div>
                {key_id && (
                    <div>
                        <dt>Key</dt>
                        <dd class="mono">{key_id}</dd>
                    </div>
                )}
                <div>
                    <dt>You may</dt>
                    <dd>{scopes.join(", ")}</dd>
                </div>
                {expires_at && (
                    <div>
                        <dt>Signed in until</dt>
                        <dd>
                            {fullTime(expires_at)} (for {duration(secondsUntil(expires_at))})
                        </dd>
                    </div>
                )}
                <div>
                    <dt>Server</dt>
                    <dd>
                        Warren {version}
                        {cluster ? ", a cluster" : ""}
                    </dd>
                </div>
            </dl>
            {!allowed().some((place) => place.label) && (
                <p class="note">
                    This key has none of the scopes read, sessions and audit, so there is nothing else that these pages
                    could show.
                </p>
            )}
            {mode === "open" ? (
                <p class="note">The server asks nobody for a key. Whoever reaches it may do everything.</p>
            ) : (
                <>
                    {memoryKey.value && (
                        <p class="note">
                            Your key is in the memory of this page only: closing or reloading it signs you out.
                        </p>
                    )}
                    <div class="row">
                        <button type="button" onClick={() => attempt(() => signOut(false))}>
                            Sign out
                        </button>
                        <button type="button" class="plain" onClick={() => (asking.value = true)}>
                            Sign out everywhere
                        </button>
                    </div>
                </>
            )}
            <p class="note">
                <a href="/docs">The API of this server</a>
            </p>
            {asking.value && (
                <Confirm
                    title="Sign out everywhere"
                    action="Sign out everywhere"
                    onConfirm={() => signOut(true)}
                    onClose={() => (asking.value = false)}
                >
                    <p>Every browser that is signed in with your key is signed out. The key itself stays valid.</p>
                </Confirm>
            )}
        </section>
    );
}
