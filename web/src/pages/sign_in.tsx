// Signing in with a key, or with a link of `warren ui`.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { useLocation } from "preact-iso/router";

import { account, serverInfo, signedOutReason } from "../auth/account";
import { loadServerInfo, signIn } from "../auth/sign_in";
import { ErrorNote } from "../components/error_note";
import { errorMessage } from "../components/notifications";
import { useTitle } from "../components/use_title";

/** Shown in place of any page, which comes back after signing in. */
export function SignInPage() {
    useTitle("Sign in");
    const key = useSignal("");
    const error = useSignal("");
    const isBusy = useSignal(false);
    async function submit(event: Event) {
        event.preventDefault();
        isBusy.value = true;
        try {
            await signIn({ key: key.value.trim() });
        } catch (failure) {
            error.value = errorMessage(failure);
        }
        isBusy.value = false;
    }
    return (
        <section class="sign-in" aria-labelledby="title">
            <h1 id="title">Sign in</h1>
            {signedOutReason.value && (
                <p class="note" role="status">
                    {signedOutReason.value}
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
                <ErrorNote text={error.value} />
                <button type="submit" disabled={isBusy.value}>
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

/** The target of a link of `warren ui`. The code stands after the #, so that it never reaches a server's log. */
export function EnterPage() {
    useTitle("Sign in");
    const { route } = useLocation();
    const code = useRef("");
    const isConfirming = useSignal(false);
    const error = useSignal("");
    async function start() {
        code.current = location.hash.slice(1);
        history.replaceState(null, "", location.pathname); // it works once, and need not stay in the history
        try {
            if (!serverInfo.value) await loadServerInfo();
            if (account.value || !isOpenedByPerson()) isConfirming.value = true;
            else await enter();
        } catch (failure) {
            error.value = errorMessage(failure);
        }
    }
    async function enter() {
        isConfirming.value = false;
        try {
            await signIn({ code: code.current });
            route("/", true);
        } catch (failure) {
            error.value = errorMessage(failure);
        }
    }
    useEffect(() => void start(), []);
    return (
        <section class="sign-in" aria-labelledby="title">
            <h1 id="title">Sign in</h1>
            {error.value && (
                <p class="note error" role="alert">
                    {error.value} <a href="/">Sign in with a key</a>
                </p>
            )}
            {isConfirming.value && (
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
            {!isConfirming.value && !error.value && (
                <p class="note" aria-busy="true">
                    Signing in…
                </p>
            )}
        </section>
    );
}

/** Whether the user opened this address, as opposed to a link of another site, which could sign them in as somebody
 *  else. */
function isOpenedByPerson(): boolean {
    return document.querySelector<HTMLMetaElement>('meta[name="opened-by"]')?.content === "person";
}
