import assert from "node:assert/strict";
import { test } from "node:test";

import {
    escapeLines,
    escapeName,
    escapeText,
    hasMisleadingCharacters,
    stripControlCharacters,
    stripEscapeSequences,
} from "../src/lib/escape";

test("hidden characters of a name become escapes", () => {
    const cases: [string, string][] = [
        ["plain name.txt", "plain name.txt"],
        ["a\nb\tc\rd", "a\\nb\\tc\\rd"],
        ["exe\u202etxt", "exe\\u202etxt"],
        ["zero\u200bwidth", "zero\\u200bwidth"],
        ["tag\u{e0041}", "tag\\u{e0041}"],
        ["lone\udc80", "lone\\udc80"],
        ["no\u00a0break", "no\\u00a0break"],
        ["Grüße 日本 🐇", "Grüße 日本 🐇"],
    ];
    for (const [name, escaped] of cases) assert.equal(escapeName(name), escaped);
});

test("the backslash of a name is escaped, so that no name can look like an escape", () => {
    assert.equal(escapeName("a\\nb"), "a\\\\nb");
    assert.notEqual(escapeName("a\\nb"), escapeName("a\nb"));
});

test("a command keeps its backslashes", () => {
    assert.equal(escapeText("printf 'a\\n'\u0007"), "printf 'a\\n'\\u0007");
});

test("the lines of a text stay lines", () => {
    assert.equal(escapeLines("one\u202e\ntwo"), "one\\u202e\ntwo");
});

test("characters that reorder or hide others are misleading, and letters of any script are not", () => {
    for (const text of ["a\u202eb", "a\u200bb", "soft\u00adhyphen", "\u{e0041}"]) {
        assert.ok(hasMisleadingCharacters(text), JSON.stringify(text));
    }
    for (const text of ["plain\r\n\ttext", "שלום", "日本語", "👩‍👧"]) {
        assert.ok(!hasMisleadingCharacters(text), JSON.stringify(text));
    }
});

test("sequences of a terminal are removed from output", () => {
    const cases: [string, string][] = [
        ["\x1b[1;31mred\x1b[0m", "red"],
        ["\x1b]0;title\x07after", "after"],
        ["\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"],
        ["\x1bPq#0\x1b\\done", "done"],
        ["\x1b(Bplain\x1b7", "plain"],
        ["\x1b[?25lhidden cursor\x1b[?25h", "hidden cursor"],
        ["cut off \x1b]0;never ends", "cut off "],
    ];
    for (const [output, text] of cases) assert.equal(stripEscapeSequences(output), text);
});

test("of a line that was overwritten the last version stays", () => {
    assert.equal(stripEscapeSequences("10 %\r50 %\r100 %\nnext\r\n"), "100 %\nnext\n");
    assert.equal(stripEscapeSequences("10 %\r20 %\r"), "20 %");
});

test("text to paste keeps tabs and newlines and loses all other controls", () => {
    assert.equal(stripControlCharacters("a\tb\r\nc"), "a\tb\r\nc");
    assert.equal(stripControlCharacters("x\x1b[201~rm -rf\x00\x07\x7f\x9b~"), "x[201~rm -rf~");
});
