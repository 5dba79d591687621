// The state of authentication: who is signed in and which scopes they have. Scripts cannot read the session cookie, so
// the server says whose it is.

import { computed, signal } from "@preact/signals";

import type { PageFacts } from "../api/schemas";

/** What the server said about itself and the account; null until it has answered. */
export const serverInfo = signal<PageFacts | null>(null);
/** The API key of a page whose browser does not keep the cookie. It is held in memory only. */
export const memoryKey = signal("");
export const account = computed(() => serverInfo.value?.account ?? null);
/** Why the sign-in form is shown to somebody who was signed in before. */
export const signedOutReason = signal("");

export function hasScope(scope: string): boolean {
    const scopes = account.value?.scopes ?? [];
    return scopes.includes(scope) || scopes.includes("admin");
}

/** Shows the sign-in form in place of the page, which comes back after signing in. */
export function markSignedOut(reason = "You are not signed in any more. Sign in again to go on where you were."): void {
    memoryKey.value = "";
    if (!serverInfo.value?.account) return;
    signedOutReason.value = reason;
    serverInfo.value = { ...serverInfo.value, account: null };
}
