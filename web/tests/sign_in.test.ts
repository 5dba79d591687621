import assert from "node:assert/strict";
import type { Server } from "node:http";
import { afterEach, beforeEach, test } from "node:test";

import type { AccountView } from "../src/api/schemas";
import { account, memoryKey, serverInfo, signedOutReason } from "../src/auth/account";
import { loadServerInfo, signIn, signOut } from "../src/auth/sign_in";
import { readBody, serve, stop } from "./page";

const KEY = "wrn_1";
const ACCOUNT: AccountView = { tenant: "acme", key_id: "key_1", scopes: ["read"], expires_at: null };

let server: Server;
let setsCookie: boolean; // whether the server may set one, which it does over TLS only
let keepsCookie: boolean; // whether the browser sends it back
let isSignedIn: boolean;
let paths: string[];
let beforeInfo: () => Promise<void>;

beforeEach(async () => {
    [setsCookie, keepsCookie, isSignedIn, paths] = [true, true, false, []];
    [serverInfo.value, memoryKey.value, signedOutReason.value] = [null, "", ""];
    beforeInfo = async () => undefined;
    server = await serve(async (request, response) => {
        paths.push(request.url!);
        const byKey = request.headers.authorization === `Bearer ${KEY}`;
        switch (request.url) {
            case "/api/ui/session": {
                const found = isSignedIn || byKey ? ACCOUNT : null;
                await beforeInfo();
                return response.end(JSON.stringify({ version: "1", cluster: false, mode: "keys", account: found }));
            }
            case "/api/ui/sign-in":
                if ((await readBody(request)).key !== KEY) {
                    return response.writeHead(401).end(JSON.stringify({ detail: "no such key" }));
                }
                isSignedIn = setsCookie && keepsCookie;
                return response.end(JSON.stringify({ ...ACCOUNT, cookie: setsCookie }));
            default:
                isSignedIn = false;
                return response.writeHead(204).end();
        }
    });
});

afterEach(() => stop(server));

test("a browser that keeps the cookie needs no key in memory", async () => {
    await signIn({ key: KEY });
    assert.deepEqual(account.value, ACCOUNT);
    assert.equal(memoryKey.value, "");
});

for (const [situation, sets, keeps] of [
    ["the server sets no cookie", false, true],
    ["the browser drops the cookie", true, false],
] as const) {
    test(`the key stays in memory if ${situation}`, async () => {
        [setsCookie, keepsCookie] = [sets, keeps];
        await signIn({ key: KEY });
        assert.deepEqual(account.value, ACCOUNT);
        assert.equal(memoryKey.value, KEY);
    });
}

test("a wrong key signs nobody in", async () => {
    await assert.rejects(signIn({ key: "wrong" }), /no such key/);
    assert.equal(account.value, null);
});

test("signing out says so, and asks the server to forget the cookie", async () => {
    await signIn({ key: KEY });
    await signOut(false);
    assert.equal(account.value, null);
    assert.equal(signedOutReason.value, "You are signed out.");
    assert.ok(paths.includes("/api/ui/sign-out"));
});

test("a key in memory is forgotten without the server, unless it signs out everywhere", async () => {
    setsCookie = false;
    await signIn({ key: KEY });
    await signOut(false);
    assert.equal(memoryKey.value, "");
    assert.ok(!paths.includes("/api/ui/sign-out"));
    await signIn({ key: KEY });
    await signOut(true);
    assert.ok(paths.includes("/api/ui/sign-out-everywhere"));
});

test("a sign-in that the server has forgotten shows the form again", async () => {
    await signIn({ key: KEY });
    isSignedIn = false;
    await loadServerInfo();
    assert.equal(account.value, null);
    assert.match(signedOutReason.value, /Sign in again/);
});

test("an answer from before a sign-in does not undo it", async () => {
    let answer = () => {};
    beforeInfo = () => new Promise((resolve) => (answer = resolve));
    const early = loadServerInfo();
    while (paths.length === 0) await new Promise(setImmediate);
    beforeInfo = async () => undefined;
    await signIn({ key: KEY });
    answer();
    await early;
    assert.deepEqual(account.value, ACCOUNT);
});
