// Signs in and out, and asks the server who is signed in.

import { get, post } from "../api/client";
import type { PageFacts, SignedInView } from "../api/schemas";
import { markSignedOut, memoryKey, serverInfo, signedOutReason } from "./account";

// Counts sign-ins and sign-outs, so that an answer requested before the latest one is ignored.
let generation = 0;

export async function loadServerInfo(): Promise<void> {
    const before = generation;
    const found = await get<PageFacts>("/api/ui/session");
    if (before !== generation) return;
    if (!found.account) markSignedOut();
    serverInfo.value = found;
}

/** Signs in by cookie. If the browser does not keep the cookie, the key stays in the memory of this page. */
export async function signIn(credentials: { key: string } | { code: string }): Promise<void> {
    generation += 1;
    const key = "key" in credentials ? credentials.key : "";
    const signedIn = await post<SignedInView>("/api/ui/sign-in", credentials);
    if (!signedIn.cookie) memoryKey.value = key;
    let found = await get<PageFacts>("/api/ui/session");
    if (!found.account) {
        memoryKey.value = key;
        found = await get<PageFacts>("/api/ui/session");
    }
    serverInfo.value = found;
    signedOutReason.value = "";
}

export async function signOut(everywhere: boolean): Promise<void> {
    generation += 1;
    if (everywhere) await post("/api/ui/sign-out-everywhere");
    else if (!memoryKey.value) await post("/api/ui/sign-out");
    markSignedOut("You are signed out.");
}
