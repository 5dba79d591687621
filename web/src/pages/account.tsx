// The account that is signed in, and signing out.

import { useSignal } from "@preact/signals";

import { account, memoryKey, serverInfo } from "../auth/account";
import { signOut } from "../auth/sign_in";
import { Fact } from "../components/facts";
import { ConfirmDialog } from "../components/form_dialog";
import { runAction } from "../components/notifications";
import { useTitle } from "../components/use_title";
import { formatDateTime, formatDuration, secondsUntil } from "../lib/format";
import { allowedRoutes } from "../routes";

export function AccountPage() {
    useTitle("Account");
    const isConfirming = useSignal(false);
    const { tenant, key_id, scopes, expires_at } = account.value!;
    const { mode, version, cluster } = serverInfo.value!;
    return (
        <section aria-labelledby="title">
            <h1 id="title">Account</h1>
            <dl class="facts card">
                <Fact name="Tenant">{tenant}</Fact>
                {key_id && (
                    <Fact name="Key" className="mono">
                        {key_id}
                    </Fact>
                )}
                <Fact name="You may">{scopes.join(", ")}</Fact>
                {expires_at && (
                    <Fact name="Signed in until">
                        {formatDateTime(expires_at)} (for {formatDuration(secondsUntil(expires_at))})
                    </Fact>
                )}
                <Fact name="Server">
                    Warren {version}
                    {cluster ? ", a cluster" : ""}
                </Fact>
            </dl>
            {!allowedRoutes().some((route) => route.label) && (
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
                        <button type="button" onClick={() => runAction(() => signOut(false))}>
                            Sign out
                        </button>
                        <button type="button" class="plain" onClick={() => (isConfirming.value = true)}>
                            Sign out everywhere
                        </button>
                    </div>
                </>
            )}
            <p class="note">
                <a href="/docs">The API of this server</a>
            </p>
            {isConfirming.value && (
                <ConfirmDialog
                    title="Sign out everywhere"
                    action="Sign out everywhere"
                    onConfirm={() => signOut(true)}
                    onClose={() => (isConfirming.value = false)}
                >
                    <p>Every browser that is signed in with your key is signed out. The key itself stays valid.</p>
                </ConfirmDialog>
            )}
        </section>
    );
}
