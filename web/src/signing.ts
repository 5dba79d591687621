// Signing in and out, and asking the server who is signed in.

import { type Account, facts, memoryKey, type ServerFacts, signedOut, signedOutWhy } from "./account";
import { get, post } from "./api";

let changes = 0; // of who is signed in; what was asked before the last one does not count any more

export async function loadFacts(): Promise<void> {
    const asked = changes;
    const found = await get<ServerFacts>("/api/ui/session");
    if (asked !== changes) return;
    if (!found.account) signedOut();
    facts.value = found;
}

/** Signs in by cookie; where the browser keeps none, the key stays in the memory of this page. */
export async function signIn(credentials: { key: string } | { code: string }): Promise<void> {
    changes += 1;
    const key = "key" in credentials ? credentials.key : "";
    const made = await post<Account & { cookie: boolean }>("/api/ui/sign-in", credentials);
    if (!made.cookie) memoryKey.value = key;
    let found = await get<ServerFacts>("/api/ui/session");
    if (!found.account) {
        memoryKey.value = key;
        found = await get<ServerFacts>("/api/ui/session");
    }
    facts.value = found;
    signedOutWhy.value = "";
}

export async function signOut(everywhere: boolean): Promise<void> {
    changes += 1;
    if (everywhere) await post("/api/ui/sign-out-everywhere");
    else if (!memoryKey.value) await post("/api/ui/sign-out");
    signedOut("You are signed out.");
}
