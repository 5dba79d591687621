import assert from "node:assert/strict";
import type { IncomingMessage } from "node:http";
import { beforeEach, test } from "node:test";

import { ApiError, apiPath, buildUrl, get, post, remove, request } from "../src/api/client";
import { account, hasScope, memoryKey, serverInfo, signedOutReason } from "../src/auth/account";
import { errorMessage } from "../src/components/notifications";
import { readBody, serve, stop } from "./page";

beforeEach(() => {
    memoryKey.value = "";
    serverInfo.value = {
        version: "1",
        cluster: false,
        mode: "keys",
        account: { tenant: "t", key_id: "k", scopes: ["read"], expires_at: null },
    };
});

test("values of a path are encoded", () => {
    assert.equal(apiPath`/api/sessions/${"a/b c"}/ports/${80}`, "/api/sessions/a%2Fb%20c/ports/80");
});

test("a query has no empty values, and lists repeat their name", () => {
    const query = { after: "", of: undefined, limit: 50, all: false, name: ["a&b", "ü"] };
    assert.equal(buildUrl("/api/x", query), "/api/x?limit=50&all=false&name=a%26b&name=%C3%BC");
    assert.equal(buildUrl("/api/x"), "/api/x");
});

test("bytes of file names that are not UTF-8 are sent as these bytes", () => {
    assert.equal(buildUrl("/f", { path: "a\udc80\udcffé" }), "/f?path=a%80%FF%C3%A9");
    assert.equal(buildUrl("/f", { path: "half \ud83d" }), "/f?path=half%20%EF%BF%BD");
});

async function failureOf(work: Promise<unknown>): Promise<ApiError> {
    const error = await work.catch((failure) => failure);
    assert.ok(error instanceof ApiError, String(error));
    return error;
}

test("a problem of the API becomes an error with its sentence and its remedy", async () => {
    const server = await serve((_request, response) => {
        response.writeHead(404, { "Content-Type": "application/problem+json" });
        response.end(JSON.stringify({ detail: "there is no session 'ses_0'", remedy: "create one" }));
    });
    const error = await failureOf(get("/api/sessions/ses_0"));
    assert.equal(error.status, 404);
    assert.ok(!error.isUnavailable);
    assert.equal(errorMessage(error), "There is no session 'ses_0' (create one)");
    await stop(server);
});

test("an answer of a proxy that is not JSON becomes an error, too", async () => {
    const server = await serve((_request, response) => response.writeHead(502).end("<h1>Bad gateway</h1>"));
    const error = await failureOf(get("/api/sessions"));
    assert.equal(errorMessage(error), "The server answered 502");
    assert.ok(error.isUnavailable);
    await stop(server);
});

test("a server that is not there is unavailable", async () => {
    await stop(await serve(() => undefined));
    const error = await failureOf(get("/api/sessions"));
    assert.equal(error.status, 0);
    assert.ok(error.isUnavailable);
});

test("a request that was aborted does not count as an unavailable server", async () => {
    const server = await serve(() => undefined);
    const controller = new AbortController();
    const pending = get("/api/sessions", {}, controller.signal);
    controller.abort();
    await assert.rejects(pending, { name: "AbortError" });
    await stop(server);
});

test("JSON is sent and read, and an answer without content is undefined", async () => {
    const seen: IncomingMessage[] = [];
    const server = await serve(async (request, response) => {
        seen.push(request);
        if (request.method === "DELETE") response.writeHead(204).end();
        else response.end(JSON.stringify({ got: await readBody(request) }));
    });
    assert.deepEqual(await post("/api/sessions", { environment: "base" }), { got: { environment: "base" } });
    assert.equal(await remove("/api/sessions/ses_1", { now: true }), undefined);
    assert.equal(seen[0]!.headers["content-type"], "application/json");
    assert.equal(seen[0]!.headers["x-warren-page"], "1");
    assert.equal(seen[0]!.headers.authorization, undefined);
    assert.equal(seen[1]!.url, "/api/sessions/ses_1?now=true");
    await stop(server);
});

test("a page that holds its key in memory sends it", async () => {
    let header = "";
    const server = await serve((request, response) => {
        header = request.headers.authorization ?? "";
        response.end();
    });
    memoryKey.value = "wrn_1";
    await request("GET", "/api/sessions");
    assert.equal(header, "Bearer wrn_1");
    await stop(server);
});

test("a request without valid credentials signs the page out", async () => {
    const server = await serve((_request, response) => response.writeHead(401).end("{}"));
    memoryKey.value = "wrn_1";
    await failureOf(get("/api/sessions"));
    assert.equal(account.value, null);
    assert.equal(memoryKey.value, "");
    assert.match(signedOutReason.value, /not signed in any more/);
    await stop(server);
});

test("an administrator has every scope, and others have their own", () => {
    assert.ok(hasScope("read"));
    assert.ok(!hasScope("exec"));
    serverInfo.value = { ...serverInfo.value!, account: { ...account.value!, scopes: ["admin"] } };
    assert.ok(hasScope("exec"));
    serverInfo.value = null;
    assert.ok(!hasScope("read"));
});
