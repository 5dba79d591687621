import assert from "node:assert/strict";
import { test } from "node:test";

import { ApiError } from "../src/api/client";
import { EventParser, type StreamEvent, streamEvents } from "../src/api/event_stream";
import { serve, stop } from "./page";

const TEXT = [
    ": a comment that keeps the connection open",
    'id: 7\nevent: session.created\ndata: {"session_id": "ses_1"}',
    'data: {"text":\ndata: "zwei Zeilen: é"}',
    "event: without data",
    'event: end\r\ndata: {"reason": "exited"}',
].join("\n\n");

const EVENTS: StreamEvent[] = [
    { id: "7", kind: "session.created", data: { session_id: "ses_1" } },
    { id: "", kind: "message", data: { text: "zwei Zeilen: é" } },
    { id: "", kind: "end", data: { reason: "exited" } },
];

test("events are read, and blocks without data are left out", () => {
    assert.deepEqual(new EventParser().push(`${TEXT}\n\n`), EVENTS);
});

test("events are the same wherever the text is cut", () => {
    const text = `${TEXT}\r\n\r\n`;
    for (let at = 0; at <= text.length; at += 1) {
        const parser = new EventParser();
        assert.deepEqual([...parser.push(text.slice(0, at)), ...parser.push(text.slice(at))], EVENTS, `cut at ${at}`);
    }
});

test("an event is not given before its end has arrived", () => {
    const parser = new EventParser();
    assert.deepEqual(parser.push('data: {"a": 1}\n'), []);
    assert.deepEqual(parser.push("\n"), [{ id: "", kind: "message", data: { a: 1 } }]);
});

async function collect(events: AsyncIterable<StreamEvent>): Promise<StreamEvent[]> {
    const found = [];
    for await (const event of events) found.push(event);
    return found;
}

test("a stream yields its events until it ends, also if a character arrives in two pieces", async () => {
    const bytes = Buffer.from(`${TEXT}\n\n`);
    const middle = bytes.indexOf(0xc3) + 1;
    const server = await serve((request, response) => {
        assert.equal(request.headers.accept, "text/event-stream");
        assert.equal(request.headers["last-event-id"], "6");
        response.writeHead(200, { "Content-Type": "text/event-stream" });
        response.write(bytes.subarray(0, middle));
        setImmediate(() => response.end(bytes.subarray(middle)));
    });
    assert.deepEqual(await collect(streamEvents("GET", "/api/events", { lastEventId: "6" })), EVENTS);
    await stop(server);
});

test("a stream from which nothing arrives counts as an unavailable server", async () => {
    const server = await serve((_request, response) => {
        response.writeHead(200);
        response.flushHeaders();
    });
    const error = await collect(streamEvents("GET", "/api/events", { idleTimeoutMs: 20 })).catch((failure) => failure);
    assert.ok(error instanceof ApiError && error.isUnavailable);
    await stop(server);
});
