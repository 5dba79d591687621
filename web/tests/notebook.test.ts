import assert from "node:assert/strict";
import type { Server, ServerResponse } from "node:http";
import { afterEach, beforeEach, test } from "node:test";

import { Cell, Notebook, notebookOf } from "../src/session/notebook";
import { readBody, serve, stop, until } from "./page";

const event = (kind: string, data: Record<string, unknown>) => ({ id: "", kind, data });
const end = (data: object = {}) => event("end", { reason: "exited", duration_ms: 27.4, execution_count: 3, ...data });

function outputOf(cell: Cell) {
    cell.flush();
    return cell.outputs.value;
}

test("output of the same stream is joined, without the sequences of a terminal", () => {
    const cell = new Cell();
    for (const text of ["\x1b[31mone\x1b[0m\n", "two\n"]) cell.apply(event("stdout", { text }));
    cell.apply(event("stderr", { text: "three\n" }));
    cell.apply(event("stdout", { text: "four\n" }));
    assert.deepEqual(outputOf(cell), [
        { kind: "text", stream: "stdout", text: "one\ntwo\n" },
        { kind: "text", stream: "stderr", text: "three\n" },
        { kind: "text", stream: "stdout", text: "four\n" },
    ]);
});

test("of too much output the beginning is shown, and the rest is counted", () => {
    const cell = new Cell();
    for (let count = 0; count < 3; count += 1) cell.apply(event("stdout", { text: "x".repeat(80_000) }));
    const [output, ...others] = outputOf(cell);
    assert.ok(output?.kind === "text");
    assert.equal(output.text.length, 200_000);
    assert.deepEqual(others, []);
    assert.equal(cell.hiddenCharacters.value, 40_000);
});

test("no more than a hundred results are shown", () => {
    const cell = new Cell();
    for (let count = 0; count < 150; count += 1) cell.apply(event("result", { text: String(count) }));
    assert.equal(outputOf(cell).length, 100);
});

test("output is cleared at once, or when the next arrives", () => {
    const cell = new Cell();
    cell.apply(event("stdout", { text: "old" }));
    cell.apply(event("clear_output", { wait: true }));
    assert.equal(outputOf(cell).length, 1);
    cell.apply(event("stdout", { text: "new" }));
    assert.deepEqual(outputOf(cell), [{ kind: "text", stream: "stdout", text: "new" }]);
    cell.apply(event("clear_output", { wait: false }));
    assert.deepEqual(outputOf(cell), []);
});

test("an exception of the code is told from an error of the API", () => {
    const cell = new Cell();
    cell.apply(event("error", { name: "ValueError", value: "no", traceback: "\x1b[1mline 1\x1b[0m" }));
    cell.apply(event("error", { code: "context_lost", detail: "the context is lost", remedy: "start another" }));
    assert.deepEqual(outputOf(cell), [
        { kind: "error", name: "ValueError", value: "no", traceback: "line 1" },
        { kind: "problem", text: "the context is lost start another" },
    ]);
});

test("the end says how long it took, and why it ended early", () => {
    const cases: [object, string, string][] = [
        [{}, "27 ms", "done"],
        [{ duration_ms: 1234 }, "1.2 s", "done"],
        [{ error: { name: "E" } }, "27 ms", "failed"],
        [{ reason: "timeout", context_lost: "killed" }, "timeout after 27 ms; the context is lost: killed", "failed"],
        [{ truncated: true }, "27 ms; some of what came was too large and is left out", "done"],
    ];
    for (const [data, outcome, state] of cases) {
        const cell = new Cell();
        cell.apply(end(data));
        assert.equal(cell.outcome.value, outcome);
        assert.equal(cell.state.value, state);
        assert.equal(cell.executionCount.value, 3);
    }
});

test("a notebook always has a cell, and at most a hundred", () => {
    const notebook = new Notebook("ses_cells");
    const [first] = notebook.cells.value;
    notebook.removeCell(first!);
    assert.equal(notebook.cells.value.length, 1);
    while (notebook.addCell()) assert.ok(notebook.cells.value.length <= 100);
    assert.equal(notebook.cells.value.length, 100);
});

test("the code of the cells survives a reload of the page", () => {
    const notebook = new Notebook("ses_saved");
    notebook.cells.value[0]!.code.value = "1 + 1";
    notebook.addCell(undefined, "2 + 2");
    notebook.save();
    const codes = new Notebook("ses_saved").cells.value.map((cell) => cell.code.value);
    assert.deepEqual(codes, ["1 + 1", "2 + 2"]);
});

test("what was stored by something else is ignored", () => {
    for (const text of ["no JSON", '{"a": 1}', "[1, null]"]) {
        sessionStorage.setItem("warren-notebook-ses_odd", text);
        assert.equal(new Notebook("ses_odd").cells.value[0]!.code.value, "");
    }
});

test("a session keeps its notebook until there are too many of them", () => {
    const first = notebookOf("ses_first");
    assert.equal(notebookOf("ses_first"), first);
    for (let count = 0; count < 10; count += 1) notebookOf(`ses_other_${count}`);
    assert.notEqual(notebookOf("ses_first"), first);
});

let server: Server;
let runs: { body: Record<string, unknown>; response: ServerResponse }[];

beforeEach(async () => {
    runs = [];
    server = await serve(async (request, response) => {
        response.writeHead(200).flushHeaders();
        runs.push({ body: await readBody(request), response });
    });
});

afterEach(() => stop(server));

function finish(run: number, ...events: ReturnType<typeof event>[]): void {
    const { response } = runs[run]!;
    for (const { kind, data } of events) response.write(`event: ${kind}\ndata: ${JSON.stringify(data)}\n\n`);
    response.end();
}

test("cells of a context run one after another, those of another beside them", async () => {
    const notebook = new Notebook("ses_run");
    const [first, second, third] = ["a", "b", "c"].map((code) => notebook.addCell(undefined, code)!);
    const done = [notebook.run(first!), notebook.run(second!)];
    notebook.context.value = "ctx_other";
    done.push(notebook.run(third!));
    await until(() => runs.length === 2);
    const byCode = () =>
        runs.map(({ body }) => body).sort((one, other) => (String(one.code) < String(other.code) ? -1 : 1));
    assert.deepEqual(byCode(), [
        { code: "a", language: "python" },
        { code: "c", context: "ctx_other" },
    ]);
    assert.equal(second!.state.value, "waiting");
    finish(0, end());
    finish(1, end());
    await until(() => runs.length === 3);
    finish(2, event("stdout", { text: "hello" }), end());
    await Promise.all(done);
    assert.deepEqual(
        [first, second, third].map((cell) => cell!.state.value),
        ["done", "done", "done"],
    );
    assert.deepEqual(second!.outputs.value, [{ kind: "text", stream: "stdout", text: "hello" }]);
});

test("a cell whose stream ends too early has failed", async () => {
    const notebook = new Notebook("ses_broken");
    const cell = notebook.cells.value[0]!;
    const done = notebook.run(cell);
    await until(() => runs.length === 1);
    finish(0, event("stdout", { text: "half" }));
    await done;
    assert.equal(cell.state.value, "failed");
    assert.match(JSON.stringify(cell.outputs.value), /The connection ended before the cell did/);
});

test("a cell that is stopped before its turn does not run", async () => {
    const notebook = new Notebook("ses_stopped");
    const [first, second] = ["a", "b"].map((code) => notebook.addCell(undefined, code)!);
    const done = [notebook.run(first!), notebook.run(second!)];
    await until(() => runs.length === 1);
    second!.controller!.abort();
    finish(0, end());
    await Promise.all(done);
    assert.equal(runs.length, 1);
    assert.equal(second!.state.value, "new");
});
