// Who is signed in. The cookie of a signed-in page cannot be read here; the server says whose it is.

import { computed, signal } from "@preact/signals";

export interface Account {
    tenant: string;
    key_id: string;
    scopes: string[];
    expires_at: string | null;
}

export interface ServerFacts {
    version: string;
    cluster: boolean;
    mode: "keys" | "open"; // open: the server asks nobody for a key
    account: Account | null;
}

/** null while nobody has asked yet. */
export const facts = signal<ServerFacts | null>(null);
/** A key that is kept in this page's memory only, where the browser takes no cookie. */
export const memoryKey = signal("");
export const account = computed(() => facts.value?.account ?? null);
/** Why the sign-in is shown in the middle of somebody's work. */
export const signedOutWhy = signal("");

export function may(scope: string): boolean {
    const scopes = account.value?.scopes ?? [];
    return scopes.includes(scope) || scopes.includes("admin");
}

/** A request was refused for want of credentials: the page shows the sign-in again, and comes back afterwards. */
export function signedOut(why = "You are not signed in any more. Sign in again to go on where you were."): void {
    memoryKey.value = "";
    if (!facts.value?.account) return;
    signedOutWhy.value = why;
    facts.value = { ...facts.value, account: null };
}
