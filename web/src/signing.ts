// Signing in and out, and asking the server who is signed in.

import { facts, memoryKey, signedOut, signedOutWhy, type Account, type ServerFacts } from "./account";
import { ApiError, get, post } from "./api";

let changes = 0; // of who is signed in; what was asked before the last one does not count any more

export async function loadFacts(): Promise<void> {
    const asked = changes;
    const found = await get<ServerFacts>("/api/ui/session");
    if (asked !== changes) return;
    const before = facts.value?.account;
    if (!found.account && before && memoryKey.value) facts.value = { ...found, account: before };
    else if (!found.account && before) signedOut();
    else facts.value = found;
}

/** Signs in by cookie; where the browser or the server takes none, the key stays in the memory of this page. */
export async function signIn(credentials: { key: string } | { code: string }): Promise<void> {
    changes += 1;
    if (!("key" in credentials)) await post<Account>("/api/ui/sign-in", credentials);
    else if (!window.isSecureContext || !(await signInByCookie(credentials.key))) {
        await keepInMemory(credentials.key);
        return;
    }
    facts.value = await get<ServerFacts>("/api/ui/session");
    signedOutWhy.value = "";
}

async function signInByCookie(key: string): Promise<boolean> {
    try {
        await post<Account>("/api/ui/sign-in", { key });
    } catch (error) {
        if (error instanceof ApiError && error.code === "insecure_transport") return false;
        throw error;
    }
    return (await get<ServerFacts>("/api/ui/session")).account !== null;
}

async function keepInMemory(key: string): Promise<void> {
    memoryKey.value = key;
    try {
        const { tenant, key_id, scopes } = await get<Account>("/api/whoami");
        facts.value = { ...(facts.value ?? await get<ServerFacts>("/api/ui/session")), account: { tenant, key_id, scopes, expires_at: null } };
        signedOutWhy.value = "";
    } catch (error) {
        memoryKey.value = "";
        throw error;
    }
}

export async function signOut(everywhere: boolean): Promise<void> {
    changes += 1;
    if (everywhere) await post("/api/ui/sign-out-everywhere");
    else if (!memoryKey.value) await post("/api/ui/sign-out");
    signedOut("You are signed out.");
}
