import assert from "node:assert/strict";
import { test } from "node:test";

import { setServerTime } from "../src/lib/clock";
import {
    describeExit,
    formatBytes,
    formatCountdown,
    formatDetails,
    formatDuration,
    formatMilliseconds,
    formatValues,
    percent,
    secondsUntil,
    splitLines,
    truncate,
} from "../src/lib/format";
import { passIntervals } from "./page";

test("bytes have one decimal below 100, and the largest unit that is not below 1", () => {
    const cases: [number, string][] = [
        [0, "0 B"],
        [1023, "1023 B"],
        [1024, "1.0 KiB"],
        [1536, "1.5 KiB"],
        [100 * 1024, "100 KiB"],
        [5 * 1024 ** 3, "5.0 GiB"],
        [2048 * 1024 ** 4, "2048 TiB"],
    ];
    for (const [value, text] of cases) assert.equal(formatBytes(value), text);
});

test("durations have at most two units, and never less than none", () => {
    const cases: [number, string][] = [
        [-5, "0 s"],
        [59.4, "59 s"],
        [60, "1 min"],
        [3599, "59 min"],
        [3600, "1 h"],
        [3660, "1 h 1 min"],
        [86_400, "1 d"],
        [90_000, "1 d 1 h"],
    ];
    for (const [seconds, text] of cases) assert.equal(formatDuration(seconds), text);
});

test("a countdown shows minutes and seconds below an hour", () => {
    assert.equal(formatCountdown(65.9), "1:05");
    assert.equal(formatCountdown(0), "0:00");
    assert.equal(formatCountdown(7260), "2 h 1 min");
});

test("milliseconds become seconds from a thousand on", () => {
    assert.equal(formatMilliseconds(2.34), "2.3 ms");
    assert.equal(formatMilliseconds(1500), "1.50 s");
});

test("a share is never above 100 percent, and none without a limit", () => {
    assert.equal(percent(1, 4), 25);
    assert.equal(percent(9, 4), 100);
    assert.equal(percent(9, 0), 0);
});

test("a text is truncated with an ellipsis to the length that was given", () => {
    assert.equal(truncate("abcdef", 6), "abcdef");
    assert.equal(truncate("abcdefg", 6), "abcde…");
});

test("lines are trimmed, and empty ones are dropped", () => {
    assert.deepEqual(splitLines("  a \n\n\tb\r\n   "), ["a", "b"]);
});

test("details leave out what is empty, and escape what is hidden", () => {
    const details = { port: 81, reason: "no rule", rule: "", name: null, exit_code: 0, list: ["a"], evil: "a\u202eb" };
    assert.equal(formatDetails(details), 'port 81, reason no rule, exit code 0, list ["a"], evil a\\u202eb');
});

test("values keep their names and those that are empty", () => {
    assert.equal(formatValues({ max_sessions: 5, mode: "", deny: ["curl"] }), 'max_sessions 5, mode , deny ["curl"]');
    assert.equal(formatValues({}), "");
});

test("an exit is described by its code, or by the reason of another end", () => {
    assert.equal(describeExit({ reason: "exited", exit_code: 3 }), "It ended with 3.");
    assert.equal(describeExit({ reason: "timeout", exit_code: 137 }), "It ended: timeout.");
});

test("times are measured by the server's clock if it differs by more than its precision", () => {
    const future = new Date(Date.now() + 60_000).toISOString();
    const assertLeft = (seconds: number) => {
        passIntervals();
        assert.ok(Math.abs(secondsUntil(future) - seconds) < 2, String(secondsUntil(future)));
    };
    assertLeft(60);
    setServerTime(new Date(Date.now() + 30_000).toUTCString());
    assertLeft(30);
    setServerTime(null);
    assertLeft(30);
    setServerTime(new Date(Date.now() + 1000).toUTCString());
    assertLeft(60);
});
