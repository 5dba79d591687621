// Signing in with a key; `warren ui` does the same with a link.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { useLocation } from "preact-iso/router";

import { account, facts, signedOutWhy } from "../account";
import { describe } from "../parts/messages";
import { useTitle } from "../parts/title";
import { loadFacts, signIn } from "../signing";

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
            {signedOutWhy.value && (
                <p class="note" role="status">
                    {signedOutWhy.value}
                </p>
            )}
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
                {error.value && (
                    <p class="note error" role="alert">
                        {error.value}
                    </p>
                )}
                <button type="submit" disabled={busy.value}>
                    Sign in
                </button>
            </form>
            <p class="note">
                Or run <code>warren ui</code> where your key is set up: it prints a link that signs you in.
            </p>
            {!window.isSecureContext && (
                <p class="note">
                    This connection is not encrypted, so your browser keeps no sign-in: the key stays in this page until
                    you close or reload it.
                </p>
            )}
        </section>
    );
}

/** Where the link of `warren ui` leads; the code after the # never reaches the server's log. */
export function EnterPage() {
    useTitle("Sign in");
    const { route } = useLocation();
    const code = useRef("");
    const asks = useSignal(false);
    const error = useSignal("");
    async function begin() {
        code.current = location.hash.slice(1);
        history.replaceState(null, "", location.pathname); // it works once; the history need not keep it
        try {
            if (!facts.value) await loadFacts();
            if (account.value || !isOpenedByPerson()) asks.value = true;
            else await enter();
        } catch (failure) {
            error.value = describe(failure);
        }
    }
    async function enter() {
        asks.value = false;
        try {
            await signIn({ code: code.current });
            route("/", true);
        } catch (failure) {
            error.value = describe(failure);
        }
    }
    useEffect(() => void begin(), []);
    return (
        <section class="sign-in" aria-labelledby="title">
            <h1 id="title">Sign in</h1>
            {error.value && (
                <p class="note error" role="alert">
                    {error.value} <a href="/">Sign in with a key</a>
                </p>
            )}
            {asks.value && (
                <div class="card">
                    <p>
                        A link wants to sign this browser in. Go on only if you have made it yourself, with{" "}
                        <code>warren ui</code>: whoever has made it sees what you do here afterwards.
                    </p>
                    {account.value && <p class="note">You are signed in as {account.value.tenant}. That ends.</p>}
                    <div class="row">
                        <button type="button" onClick={enter}>
                            Use the link
                        </button>
                        <button type="button" class="plain" onClick={() => route("/", true)}>
                            Cancel
                        </button>
                    </div>
                </div>
            )}
            {!asks.value && !error.value && (
                <p class="note" aria-busy="true">
                    Signing in…
                </p>
            )}
        </section>
    );
}

/** Whether somebody has opened this page's address themselves. Else any site could sign people in as somebody else. */
function isOpenedByPerson(): boolean {
    return document.querySelector<HTMLMetaElement>('meta[name="opened-by"]')?.content === "person";
}
