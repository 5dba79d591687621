import assert from "node:assert/strict";
import { test } from "node:test";

import type { LogEntryView } from "../src/api/schemas";
import { describeEntry, matches, mergeEntries, printEntry } from "../src/session/log_text";

const AT = "2027-01-15T08:00:00.123Z";
const started: LogEntryView = { id: 1, at: AT, kind: "command", event: "started", command_id: "p1", command: "a\nb" };
const ended = { ...started, id: 2, event: "ended", command: null, exit_code: 3, reason: "exited", duration_ms: 12.5 };
const output: LogEntryView = { id: 3, at: AT, kind: "output", command_id: "p1", stream: "stderr", text: "one\ntwo\n" };

test("an entry says what ran, and how it ended", () => {
    assert.equal(describeEntry(started), "p1 started: a\nb");
    assert.equal(describeEntry(ended), "p1 ended with 3 after 12.5 ms");
    assert.equal(describeEntry({ ...ended, exit_code: null, reason: "timeout" }), "p1 ended (timeout) after 12.5 ms");
    const refused = { ...started, event: "failed", command: null, reason: "refused", detail: "no rule allows it" };
    assert.equal(describeEntry(refused), "p1 failed (refused), no rule allows it");
    assert.equal(describeEntry({ id: 4, at: AT, kind: "terminal", event: "opened", command_id: "t" }), "t opened");
});

test("nothing that a sandbox wrote hides other text", () => {
    assert.equal(describeEntry({ ...output, text: "\x1b[31mred\x1b[0m \u202etxt\r\nend\n" }), "red \\u202etxt\nend\n");
    assert.equal(describeEntry({ ...started, command: "\u202etxt" }), "p1 started: \\u202etxt");
    assert.equal(describeEntry({ ...ended, error: "a\nb" }), "p1 ended with 3 after 12.5 ms, a\\nb");
});

test("a log is printed with what was written below what ran", () => {
    const printed = [started, { ...output, missing: 7 }, ended].map(printEntry).join("");
    assert.equal(
        printed,
        [
            "2027-01-15 08:00:00 command p1 started: a",
            "  > b",
            "  … 7 bytes were not kept",
            "  ! one",
            "  ! two",
            "2027-01-15 08:00:00 command p1 ended with 3 after 12.5 ms",
            "",
        ].join("\n"),
    );
});

test("a search looks at what is shown", () => {
    assert.equal(matches(output, " TWO"), true);
    assert.equal(matches(started, "two"), false);
});

test("what came twice is there once, in the order of the log", () => {
    const merged = mergeEntries([ended, output], [started, output]);
    assert.deepEqual(
        merged.map((entry) => entry.id),
        [1, 2, 3],
    );
});
