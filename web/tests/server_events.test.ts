import assert from "node:assert/strict";
import type { IncomingMessage, Server, ServerResponse } from "node:http";
import { afterEach, beforeEach, test } from "node:test";

import type { StreamEvent } from "../src/api/event_stream";
import { onServerReturn, serverReachable, subscribe } from "../src/api/server_events";
import { page, serve, stop, until } from "./page";

let server: Server;
let streams: { request: IncomingMessage; response: ServerResponse }[];
let status: number;
let resumed: boolean;
let events: StreamEvent[];
let unsubscribe: () => void;

const send = (response: ServerResponse, kind: string, data: object, id = "") =>
    response.write(`${id && `id: ${id}\n`}event: ${kind}\ndata: ${JSON.stringify(data)}\n\n`);
const kinds = () => events.map((event) => event.kind);

beforeEach(async () => {
    [streams, status, resumed, events] = [[], 200, false, []];
    server = await serve((request, response) => {
        if (request.url !== "/api/events") return response.end(JSON.stringify({ account: null }));
        response.writeHead(status).flushHeaders();
        streams.push({ request, response });
        if (status !== 200) return response.end("{}");
        return send(response, "ready", { resumed });
    });
    unsubscribe = subscribe((event) => events.push(event));
    await until(() => events.length === 1);
});

afterEach(async () => {
    unsubscribe();
    page.setHidden(false);
    await stop(server);
});

test("a stream begins with a gap, after which events follow", async () => {
    send(streams[0]!.response, "session.created", { session_id: "ses_1" }, "1");
    await until(() => events.length === 2);
    assert.deepEqual(kinds(), ["gap", "session.created"]);
    assert.equal(events[1]!.data.session_id, "ses_1");
});

test("all subscribers share one stream, which ends with the last of them", async () => {
    const others: StreamEvent[] = [];
    const stopOther = subscribe((event) => others.push(event));
    send(streams[0]!.response, "session.created", {}, "1");
    await until(() => others.length === 1 && events.length === 2);
    assert.equal(streams.length, 1);
    let isClosed = false;
    streams[0]!.response.on("close", () => (isClosed = true));
    stopOther();
    unsubscribe();
    await until(() => isClosed);
});

test("a stream that breaks comes back where it was, without a gap if nothing was missed", async () => {
    send(streams[0]!.response, "session.created", {}, "5");
    await until(() => events.length === 2);
    resumed = true;
    streams[0]!.response.end();
    await until(() => streams.length === 2);
    assert.equal(streams[1]!.request.headers["last-event-id"], "5");
    send(streams[1]!.response, "session.ended", {}, "6");
    await until(() => events.length === 3);
    assert.deepEqual(kinds(), ["gap", "session.created", "session.ended"]);
    assert.ok(serverReachable.value);
});

test("a server that was unreachable is noticed, and so is its return", async () => {
    let returns = 0;
    const stopListening = onServerReturn(() => (returns += 1));
    status = 503;
    streams[0]!.response.end();
    await until(() => !serverReachable.value);
    assert.equal(returns, 0);
    status = 200;
    await until(() => serverReachable.value);
    assert.equal(returns, 1);
    assert.equal(kinds().at(-1), "gap");
    stopListening();
});

test("a hidden page keeps no stream open", async () => {
    let isClosed = false;
    streams[0]!.response.on("close", () => (isClosed = true));
    page.setHidden(true);
    await until(() => isClosed);
    assert.equal(streams.length, 1);
    page.setHidden(false);
    await until(() => streams.length === 2);
});

test("a stream that the server refuses for want of credentials is not tried again", async () => {
    status = 401;
    streams[0]!.response.end();
    await until(() => streams.length === 2);
    await new Promise((resolve) => setTimeout(resolve, 50));
    assert.equal(streams.length, 2);
    assert.ok(serverReachable.value);
});
