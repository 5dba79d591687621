// Signing in with a key; `warren ui` does the same with a link.

import { useSignal } from "@preact/signals";
import { useLocation } from "preact-iso/router";
import { useEffect } from "preact/hooks";

import { signedOutWhy } from "../account";
import { describe } from "../parts/messages";
import { useTitle } from "../parts/title";
import { signIn } from "../signing";

/** It is shown in the place of any page, which comes back afterwards. */
export function SignInPage() {
    useTitle("Sign in");
    const key = useSignal("");
    const error = useSignal("");
    const busy = useSignal(false);
    async function submit(event: Event) {
        event.preventDefault();
        busy.value = true;
        try {
            await signIn({ key: key.value.trim() });
        } catch (failure) {
            error.value = describe(failure);
        }
        busy.value = false;
    }
    return (
        <section class="sign-in" aria-labelledby="title">
            <h1 id="title">Sign in</h1>
            {signedOutWhy.value && <p class="note" role="status">{signedOutWhy.value}</p>}
            <form class="card" onSubmit={submit}>
                <label>
                    API key
                    <input
                        type="password"
                        autocomplete="off"
                        spellcheck={false}
                        required
                        value={key.value}
                        onInput={(event) => (key.value = event.currentTarget.value)}
                        ref={(field) => field?.focus()}
                    />
                </label>
                {error.value && <p class="note error" role="alert">{error.value}</p>}
                <button type="submit" disabled={busy.value}>Sign in</button>
            </form>
            <p class="note">
                Or run <code>warren ui</code> where your key is set up: it prints a link that signs you in.
            </p>
            {!window.isSecureContext && (
                <p class="note">
                    This connection is not encrypted, so your browser keeps no sign-in: the key stays in this page until you
                    close or reload it.
                </p>
            )}
        </section>
    );
}

/** Where the link of `warren ui` leads; the code after the # never reaches the server's log. */
export function EnterPage() {
    useTitle("Sign in");
    const { route } = useLocation();
    const error = useSignal("");
    async function enter() {
        const code = location.hash.slice(1);
        history.replaceState(null, "", location.pathname); // it works once; the history need not keep it
        try {
            await signIn({ code });
            route("/", true);
        } catch (failure) {
            error.value = describe(failure);
        }
    }
    useEffect(() => void enter(), []);
    return (
        <section class="sign-in" aria-labelledby="title">
            <h1 id="title">Sign in</h1>
            {error.value
                ? <p class="note error" role="alert">{error.value} <a href="/">Sign in with a key</a></p>
                : <p class="note" aria-busy="true">Signing in…</p>}
        </section>
    );
}
