// The notebook of a session: its cells and their output. It lives as long as the page, so a running cell continues while
// another tab is shown. The code, but not the output, survives a reload of the page.

import { batch, signal } from "@preact/signals";

import { ApiError, apiPath } from "../api/client";
import { type StreamEvent, streamEvents } from "../api/event_stream";
import { errorMessage } from "../components/notifications";
import { stripEscapeSequences } from "../lib/escape";

/** A result in several formats, by their names. */
export type Result = Record<string, unknown>;

export type Output =
    | { kind: "text"; stream: string; text: string }
    | { kind: "result"; result: Result }
    | { kind: "error"; name: string; value: string; traceback: string }
    | { kind: "problem"; text: string };

export type CellState = "new" | "waiting" | "running" | "done" | "failed";

const MAX_TEXT = 200_000; // characters of output that are shown of a cell
const MAX_RESULTS = 100;
const MAX_CELLS = 100;
const MAX_NOTEBOOKS = 10;
const MAX_SAVED = 500_000; // characters
const FLUSH_MS = 60;
const MAX_RUNNING = 2; // a browser allows six connections to a server, and an interrupt needs one of them

let lastId = 0;

export class Cell {
    readonly id: string;
    readonly code = signal("");
    readonly outputs = signal<readonly Output[]>([]);
    readonly state = signal<CellState>("new");
    readonly executionCount = signal<number | null>(null);
    /** How it ended: "27 ms", "timeout after 120 s". */
    readonly outcome = signal("");
    /** How many characters of output are not shown. */
    readonly hiddenCharacters = signal(0);
    controller: AbortController | null = null;
    /** The id of the context that runs the cell; empty until it has started. */
    context = "";

    private textLength = 0;
    private resultCount = 0;
    private clearBeforeNext = false;
    private pending: Output[] = [];
    private timer: ReturnType<typeof setTimeout> | undefined;

    constructor(code = "") {
        lastId += 1;
        this.id = `cell-${lastId}`;
        this.code.value = code;
    }

    /** Whether it runs or waits for another cell. */
    get isBusy(): boolean {
        return this.state.value === "running" || this.state.value === "waiting";
    }

    /** Drops the output of the last run, and waits for the next. */
    reset(): void {
        clearTimeout(this.timer);
        this.timer = undefined;
        this.context = "";
        batch(() => {
            this.clear();
            this.hiddenCharacters.value = 0;
            this.outcome.value = "";
            this.executionCount.value = null;
            this.state.value = "waiting";
        });
    }

    /** Adds output. It is shown at the next flush: a cell may print thousands of lines in a second. */
    add(output: Output): void {
        if (this.clearBeforeNext) this.clear();
        if (output.kind === "text") {
            const room = Math.max(0, MAX_TEXT - this.textLength);
            this.textLength += output.text.length;
            if (output.text.length > room) {
                this.hiddenCharacters.value += output.text.length - room;
                output = { ...output, text: output.text.slice(0, room) };
            }
            if (!output.text) return;
        } else if (output.kind === "result") {
            this.resultCount += 1;
            if (this.resultCount > MAX_RESULTS) return;
        }
        this.pending.push(output);
        this.timer ??= setTimeout(() => this.flush(), FLUSH_MS);
    }

    clear(): void {
        this.clearBeforeNext = false;
        this.pending = [];
        this.textLength = 0;
        this.resultCount = 0;
        this.outputs.value = [];
    }

    /** Clears the output when the next arrives, so that an animation does not flicker. */
    clearLater(): void {
        this.clearBeforeNext = true;
    }

    flush(): void {
        clearTimeout(this.timer);
        this.timer = undefined;
        const outputs = [...this.outputs.value];
        for (const output of this.pending) {
            const last = outputs[outputs.length - 1];
            if (output.kind === "text" && last?.kind === "text" && last.stream === output.stream) {
                outputs[outputs.length - 1] = { ...last, text: last.text + output.text };
            } else outputs.push(output);
        }
        this.pending = [];
        this.outputs.value = outputs;
    }

    /** Applies an event of the stream that runs the cell. */
    apply({ kind, data }: StreamEvent): void {
        switch (kind) {
            case "started":
                this.context = String(data.context_id);
                break;
            case "stdout":
            case "stderr":
                this.add({ kind: "text", stream: kind, text: stripEscapeSequences(String(data.text)) });
                break;
            case "result":
                this.add({ kind: "result", result: data });
                break;
            case "clear_output":
                if (data.wait) this.clearLater();
                else this.clear();
                break;
            case "error":
                this.add(data.code ? problemOutput(data) : errorOutput(data));
                break;
            case "end":
                this.executionCount.value = typeof data.execution_count === "number" ? data.execution_count : null;
                this.outcome.value = describeEnd(data);
                this.state.value = data.error || data.reason !== "exited" ? "failed" : "done";
                break;
        }
    }
}

/** An error of the API, as opposed to an exception of the cell's code. */
function problemOutput({ detail, remedy }: StreamEvent["data"]): Output {
    return { kind: "problem", text: [detail, remedy].filter(Boolean).join(" ") };
}

function errorOutput({ name, value, traceback }: StreamEvent["data"]): Output {
    return {
        kind: "error",
        name: String(name),
        value: String(value),
        traceback: stripEscapeSequences(String(traceback ?? "")),
    };
}

function describeEnd({ reason, duration_ms, context_lost, truncated }: StreamEvent["data"]): string {
    const ms = Number(duration_ms);
    const duration = ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
    const parts = [reason === "exited" ? duration : `${reason} after ${duration}`];
    if (context_lost) parts.push(`the context is lost: ${context_lost}`);
    if (truncated) parts.push("some of what came was too large and is left out");
    return parts.join("; ");
}

export class Notebook {
    readonly cells = signal<readonly Cell[]>([]);
    readonly language = signal("python");
    /** The id of the context that runs the cells; empty for the default context of the language. */
    readonly context = signal("");
    /** By context: the end of the cell that was queued last. */
    private readonly queues = new Map<string, Promise<void>>();

    constructor(readonly sessionId: string) {
        const codes = loadCode(sessionId);
        this.cells.value = (codes.length ? codes : [""]).map((code) => new Cell(code));
    }

    /** Returns null if there are too many cells. */
    addCell(after?: Cell, code = ""): Cell | null {
        const cells = [...this.cells.value];
        if (cells.length >= MAX_CELLS) return null;
        const cell = new Cell(code);
        cells.splice(after ? cells.indexOf(after) + 1 : cells.length, 0, cell);
        this.cells.value = cells;
        return cell;
    }

    removeCell(cell: Cell): void {
        cell.controller?.abort();
        this.cells.value = this.cells.value.filter((other) => other !== cell);
        if (this.cells.value.length === 0) this.addCell();
        this.save();
    }

    /** Saves the code of the cells for a reload of the page, in this tab of the browser only. */
    save(): void {
        const text = JSON.stringify(this.cells.value.map((cell) => cell.code.value));
        try {
            if (text.length <= MAX_SAVED) sessionStorage.setItem(storageKey(this.sessionId), text);
        } catch {
            // The browser has no storage, or no room in it: the notebook works without.
        }
    }

    /** Runs a cell after the cells of the same context that were started before. */
    async run(cell: Cell): Promise<void> {
        if (cell.isBusy) return;
        this.save();
        cell.reset();
        const controller = new AbortController();
        cell.controller = controller;
        const context: Record<string, string> = this.context.value
            ? { context: this.context.value }
            : { language: this.language.value };
        const key = JSON.stringify(context);
        const previous = this.queues.get(key) ?? Promise.resolve();
        const current = previous.then(() =>
            withSlot(controller.signal, () => this.execute(cell, context, controller.signal)),
        );
        this.queues.set(key, current);
        await current;
        if (cell.state.value === "waiting") cell.state.value = "new"; // it was stopped before its turn
    }

    private async execute(cell: Cell, context: Record<string, string>, signal: AbortSignal): Promise<void> {
        cell.state.value = "running";
        let hasEnded = false;
        try {
            const body = { code: cell.code.value, ...context };
            for await (const event of streamEvents("POST", apiPath`/api/sessions/${this.sessionId}/code`, {
                body,
                signal,
            })) {
                hasEnded ||= event.kind === "end" || (event.kind === "error" && Boolean(event.data.code));
                cell.apply(event);
            }
            if (!hasEnded) {
                cell.add({ kind: "problem", text: "The connection ended before the cell did; it was interrupted." });
            }
        } catch (error) {
            if (!signal.aborted || error instanceof ApiError) cell.add({ kind: "problem", text: errorMessage(error) });
        }
        cell.controller = null;
        cell.flush();
        if (cell.isBusy) cell.state.value = "failed";
    }
}

let slotsInUse = 0;
const slotQueue: (() => void)[] = [];

/** Does the work when a slot is free, or not at all if it was aborted meanwhile. */
async function withSlot(signal: AbortSignal, work: () => Promise<void>): Promise<void> {
    if (signal.aborted) return;
    if (slotsInUse >= MAX_RUNNING) await new Promise<void>((resolve) => slotQueue.push(resolve));
    else slotsInUse += 1;
    try {
        if (!signal.aborted) await work();
    } finally {
        const next = slotQueue.shift(); // it takes over this slot
        if (next) next();
        else slotsInUse -= 1;
    }
}

const storageKey = (sessionId: string): string => `warren-notebook-${sessionId}`;

function loadCode(sessionId: string): string[] {
    try {
        const saved: unknown = JSON.parse(sessionStorage.getItem(storageKey(sessionId)) ?? "[]");
        return Array.isArray(saved) ? saved.filter((code) => typeof code === "string").slice(0, MAX_CELLS) : [];
    } catch {
        return [];
    }
}

const notebooks = new Map<string, Notebook>();

/** Returns the notebook of a session. If there are too many, an idle one is dropped. */
export function notebookOf(sessionId: string): Notebook {
    let notebook = notebooks.get(sessionId);
    if (!notebook) {
        const idle = [...notebooks].find(([, other]) => other.cells.value.every((cell) => !cell.isBusy));
        if (notebooks.size >= MAX_NOTEBOOKS && idle) notebooks.delete(idle[0]);
        notebook = new Notebook(sessionId);
        notebooks.set(sessionId, notebook);
    }
    return notebook;
}
