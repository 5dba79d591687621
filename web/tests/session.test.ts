import assert from "node:assert/strict";
import { test } from "node:test";

import type { FiguresView, FileView, RefusalView } from "../src/api/schemas";
import { parseJsonObject } from "../src/lib/json_input";
import { type SessionForm, sessionBody } from "../src/pages/new_session";
import { joinPath, parentOf, sortFiles, uploadDirectory } from "../src/session/file_paths";
import { perSecond, seriesWithNow } from "../src/session/metrics_series";
import { groupRefusals } from "../src/session/refusals";
import { decodeText } from "../src/session/text_file";

const FORM: SessionForm = {
    thread: " t ",
    image: "",
    memoryMb: "",
    cpus: "",
    diskMb: "",
    processes: "",
    idleMinutes: "",
    lifetimeMinutes: "",
    onIdle: "",
    pausedHours: "",
    snapshot: "",
    volumes: "",
    logs: "",
    onMismatch: "",
    metadata: "",
    rules: "",
};

test("an empty form leaves everything to the environment", () => {
    assert.deepEqual(sessionBody("base", FORM, "environment"), {
        environment: "base",
        thread_id: "t",
        image: "",
        limits: undefined,
        idle_timeout_s: undefined,
        max_lifetime_s: undefined,
        on_idle: undefined,
        max_paused_s: undefined,
        snapshot: undefined,
        volumes: undefined,
        logs: undefined,
        on_mismatch: undefined,
        network: undefined,
        metadata: {},
    });
});

test("limits are numbers, and minutes become seconds", () => {
    const body = sessionBody("base", { ...FORM, cpus: "0.5", idleMinutes: "1.5", lifetimeMinutes: "60" }, "nothing");
    assert.deepEqual(body.limits, { memory_mb: undefined, cpus: 0.5, disk_mb: undefined, pids: undefined });
    assert.equal(body.idle_timeout_s, 90);
    assert.equal(body.max_lifetime_s, 3600);
});

test("what lasts is asked for as it was chosen", () => {
    const chosen = { onIdle: "pause", pausedHours: "1.5", logs: "output", onMismatch: "replace", snapshot: " ready " };
    const form = { ...FORM, ...chosen, volumes: "cache:/workspace/cache\n\n models:/models:ro " };
    const body = sessionBody("base", form, "environment");
    assert.deepEqual([body.on_idle, body.max_paused_s, body.logs], ["pause", 5400, "output"]);
    assert.deepEqual([body.on_mismatch, body.snapshot], ["replace", "ready"]);
    assert.equal(sessionBody("base", { ...form, thread: " " }, "environment").on_mismatch, undefined);
    assert.deepEqual(body.volumes, [
        { name: "cache", path: "/workspace/cache", read_only: false },
        { name: "models", path: "/models", read_only: true },
    ]);
    for (const line of ["cache", ":/x", "cache:/x:no", "cache:/x:ro:rw"]) {
        assert.throws(() => sessionBody("base", { ...FORM, volumes: line }, "environment"), /must be name:path/);
    }
});

test("the rules of a network are those of the choice", () => {
    const form = { ...FORM, rules: "a.example\n\n b.example:443 " };
    const rules = ["a.example", "b.example:443"];
    assert.deepEqual(sessionBody("base", form, "nothing").network, { internet: false, allow: [] });
    assert.deepEqual(sessionBody("base", form, "some").network, { internet: false, allow: rules });
    assert.deepEqual(sessionBody("base", form, "internet").network, { internet: true, deny: rules });
});

test("metadata are lines of name=value", () => {
    const { metadata } = sessionBody("base", { ...FORM, metadata: "user = u-7\nquery=a=b" }, "environment");
    assert.deepEqual(metadata, { user: "u-7", query: "a=b" });
    for (const line of ["nothing", "=value"]) {
        assert.throws(() => sessionBody("base", { ...FORM, metadata: line }, "environment"), /must be name=value/);
    }
});

test("a JSON object is read from a form, and anything else is refused with a sentence", () => {
    assert.deepEqual(parseJsonObject(' {"sessions": 5} ', "The quota"), { sessions: 5 });
    assert.deepEqual(parseJsonObject("  ", "The quota"), {});
    assert.throws(() => parseJsonObject("{", "The quota"), { message: "The quota is not JSON" });
    for (const text of ["[]", "null", "5"])
        assert.throws(() => parseJsonObject(text, "The quota"), /must be a JSON object/);
});

const file = (path: string, kind = "file"): FileView => ({
    path,
    name: path.slice(path.lastIndexOf("/") + 1),
    kind,
    size: 0,
    mode: "0644",
    uid: 1000,
    gid: 1000,
    modified: "",
    target: null,
});

test("directories stand before files, each in the order of their names", () => {
    const files = [
        file("/w/b"),
        file("/w/z", "directory"),
        file("/w/a"),
        file("/w/c", "symlink"),
        file("/w/y", "directory"),
    ];
    assert.deepEqual(
        sortFiles(files).map(({ name }) => name),
        ["y", "z", "a", "b", "c"],
    );
    assert.equal(files[0]!.name, "b");
});

test("paths are joined and taken apart, at the root as well", () => {
    assert.equal(joinPath("/", "a"), "/a");
    assert.equal(joinPath("/w", "a"), "/w/a");
    assert.equal(parentOf("/w/a"), "/w");
    assert.equal(parentOf("/a"), "/");
});

test("uploads go to the selected directory, or to the one of the selected file", () => {
    assert.equal(uploadDirectory(null, "/workspace"), "/workspace");
    assert.equal(uploadDirectory(file("/w/d", "directory"), "/workspace"), "/w/d");
    assert.equal(uploadDirectory(file("/w/a"), "/workspace"), "/w");
});

const decode = (content: string | number[], size?: number) => {
    const bytes = Uint8Array.from(typeof content === "string" ? Buffer.from(content) : content);
    return decodeText(bytes, size ?? bytes.length);
};

test("ordinary text can be edited", () => {
    assert.deepEqual(decode("Grüße\n"), { text: "Grüße\n", readOnlyReason: "", notices: [], newline: "\n" });
});

test("text that saving would change cannot be edited", () => {
    assert.match(decode([0x66, 0]).readOnlyReason, /not text/);
    assert.match(decode([0x66, 0xfc]).readOnlyReason, /not UTF-8/);
    assert.equal(decode([0x66, 0xfc]).text, "fü");
    assert.match(decode("one\r\ntwo\n").readOnlyReason, /end in different ways/);
    assert.match(decode("one\rtwo\n").readOnlyReason, /end in different ways/);
    assert.match(decode("begin", 2048).readOnlyReason, /Only the first 5 B of 2.0 KiB/);
});

test("a character that the end of the beginning cuts does not make it Latin-1", () => {
    assert.deepEqual(decode([0x66, 0xc3], 100).text, "f");
});

test("newlines of Windows and a byte order mark stay, and hidden characters are reported", () => {
    const { text, readOnlyReason, notices, newline } = decode("\ufeffa\r\nb\u202e\r\n");
    assert.equal(text, "\ufeffa\r\nb\u202e\r\n");
    assert.equal(readOnlyReason, "");
    assert.equal(newline, "\r\n");
    assert.equal(notices.length, 3);
});

test("refusals of the same destination are one group, the newest first", () => {
    const refusal = (name: string, at: string, count?: number): RefusalView => ({
        at,
        name,
        address: "10.0.0.1",
        port: 443,
        reason: "no rule allows it",
        rule: `${name}:443`,
        count,
    });
    const groups = groupRefusals([refusal("a", "1", 2), refusal("b", "2"), refusal("a", "3", 4)]);
    assert.deepEqual(
        groups.map(({ name, at, count }) => [name, at, count]),
        [
            ["a", "3", 6],
            ["b", "2", 1],
        ],
    );
});

const point = (second: number, sent: number): FiguresView => ({
    at: `2026-01-01T00:00:${String(second).padStart(2, "0")}Z`,
    cpu_s: 0,
    cpus: 0,
    memory_bytes: 0,
    cache_bytes: 0,
    disk_bytes: 0,
    processes: 1,
    sent_bytes: sent,
    received_bytes: 0,
});

test("rates are those between two points, and never negative after a restart of the counter", () => {
    const points = [point(0, 100), point(10, 600), point(10, 700), point(20, 0)];
    assert.deepEqual(perSecond(points, "sent_bytes"), [null, 50, null, 0]);
});

test("the current values are the last point, unless the series has it", () => {
    const limits = { cpus: 1, memory_bytes: 0, disk_bytes: 0, processes: 0 };
    const metrics = { session_id: "ses_1", interval_s: 10, limits, series: [point(0, 1), point(10, 2)] };
    assert.equal(seriesWithNow({ ...metrics, now: point(15, 3) }).length, 3);
    assert.equal(seriesWithNow({ ...metrics, now: point(10, 2) }).length, 2);
    assert.equal(seriesWithNow({ ...metrics, series: [], now: point(10, 2) }).length, 1);
});
