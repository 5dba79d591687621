import assert from "node:assert/strict";
import { test } from "node:test";

import { decodeBase64 } from "../src/lib/base64";
import { OutputFlow } from "../src/terminal/output_flow";
import { isFinalClose, isTerminalReply, splitInput } from "../src/terminal/protocol";

const KIB = 1024;

test("output is acknowledged when it is on the screen, and not for every piece", () => {
    const flow = new OutputFlow();
    flow.arrive(200 * KIB);
    assert.equal(flow.received, 200 * KIB);
    assert.equal(flow.pending, 200 * KIB);
    assert.equal(flow.show(100 * KIB), null);
    assert.equal(flow.show(50 * KIB), 150 * KIB);
    assert.equal(flow.show(50 * KIB), null);
    assert.equal(flow.pending, 0);
});

test("a new connection continues at the offset that has arrived", () => {
    const flow = new OutputFlow();
    flow.arrive(100 * KIB);
    flow.show(100 * KIB);
    flow.restart();
    flow.arrive(100 * KIB);
    assert.equal(flow.show(100 * KIB), null);
    flow.arrive(28 * KIB);
    assert.equal(flow.show(28 * KIB), 228 * KIB);
});

test("a gap in the output moves the offset", () => {
    const flow = new OutputFlow();
    flow.skipTo(1000 * KIB);
    flow.arrive(10);
    assert.equal(flow.received, 1000 * KIB + 10);
    assert.equal(flow.show(10), 1000 * KIB + 10);
});

test("a replay lasts until its last byte is on the screen", () => {
    const flow = new OutputFlow();
    assert.ok(!flow.isReplaying);
    flow.setReplayEnd(100);
    flow.arrive(120);
    assert.ok(flow.isReplaying);
    flow.show(99);
    assert.ok(flow.isReplaying);
    flow.show(1);
    assert.ok(!flow.isReplaying);
});

test("replies of the terminal are told from typed keys", () => {
    const replies = [
        "\x1b[?1;2c",
        "\x1b[24;80R",
        "\x1b[0n",
        "\x1b[>0;276;0c",
        "\x1b[?2026;2$y",
        "\x1b]11;rgb:00/00/00\x07",
        "\x1bP1$r0m\x1b\\",
    ];
    for (const reply of replies) assert.ok(isTerminalReply(reply), JSON.stringify(reply));
    const keys = ["a", "\r", "\x1b", "\x1b[A", "\x1bOA", "\x1b[3~", "\x1b[1;5C", "\x1b[200~pasted\x1b[201~", "\x03"];
    for (const key of keys) assert.ok(!isTerminalReply(key), JSON.stringify(key));
});

test("long input is split into messages, and nothing of it is lost", () => {
    const data = Uint8Array.from({ length: 150 * KIB }, (_, index) => index % 251);
    const chunks = splitInput(data);
    assert.deepEqual(
        chunks.map((chunk) => chunk.length),
        [64 * KIB, 64 * KIB, 22 * KIB],
    );
    assert.deepEqual(Buffer.concat(chunks), Buffer.from(data));
    assert.deepEqual(splitInput(new Uint8Array()), []);
});

test("a close for good is told from a lost connection", () => {
    for (const code of [4401, 4404, 4410]) assert.ok(isFinalClose(code));
    for (const code of [1000, 1006, 1012, 4429, 4503]) assert.ok(!isFinalClose(code));
});

test("base64 is decoded to bytes, and anything else is refused", () => {
    assert.deepEqual([...decodeBase64("AP+A")], [0, 255, 128]);
    assert.throws(() => decodeBase64("not base64!"));
});
