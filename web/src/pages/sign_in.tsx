// Signing in with a key; `warren ui` does the same with a link.

import { useSignal } from "@preact/signals";

import { facts, memoryKey, type Account, type ServerFacts } from "../account";
import { get, post } from "../api";
import { describe } from "../parts/messages";

/** Signs in by cookie; where the browser takes none, the key stays in the memory of this page. */
export async function signIn(credentials: { key: string } | { code: string }): Promise<void> {
    const account = await post<Account>("/api/ui/sign-in", credentials);
    const found = await get<ServerFacts>("/api/ui/session");
    if (!found.account && "key" in credentials) memoryKey.value = credentials.key;
    facts.value = { ...found, account: found.account ?? account };
}

export function SignInPage() {
    const key = useSignal("");
    const error = useSignal("");
    async function submit(event: Event) {
        event.preventDefault();
        try {
            await signIn({ key: key.value.trim() });
        } catch (failure) {
            error.value = describe(failure);
        }
    }
    return (
        <section class="sign-in" aria-labelledby="title">
            <h1 id="title">Sign in</h1>
            <form onSubmit={submit}>
                <label>
                    API key
                    <input type="password" autocomplete="off" required value={key.value} onInput={(event) => (key.value = event.currentTarget.value)} />
                </label>
                {error.value && <p class="note error" role="alert">{error.value}</p>}
                <button type="submit">Sign in</button>
            </form>
            <p class="note">On the server's machine, <code>warren ui</code> prints a link that signs you in.</p>
        </section>
    );
}
