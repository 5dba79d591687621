// The notebook of a session: its cells and what came of them. It lives while the page does, also under other tabs, so a
// cell that runs goes on when somebody looks at the files meanwhile. The code, without results, survives a reload.

import { batch, signal } from "@preact/signals";

import { ApiError, events, path } from "../api";
import { describe } from "../parts/messages";

export interface Result {
    is_main_result?: boolean;
    [format: string]: unknown;
}

export type Output =
    | { kind: "text"; stream: string; text: string }
    | { kind: "result"; result: Result }
    | { kind: "error"; name: string; value: string; traceback: string }
    | { kind: "problem"; text: string };

export type CellState = "new" | "waiting" | "running" | "done" | "failed";

const MOST_TEXT = 200_000; // characters of output that are shown of a cell
const MOST_RESULTS = 100;
const MOST_CELLS = 100;
const MOST_NOTEBOOKS = 10;
const MOST_KEPT = 500_000;
const FLUSH_MS = 60;
const MOST_RUNNING = 2; // a browser has six connections to a server, and an interrupt needs one of them

let lastId = 0;

export class Cell {
    readonly id = `cell-${++lastId}`;
    readonly code = signal("");
    readonly outputs = signal<readonly Output[]>([]);
    readonly state = signal<CellState>("new");
    readonly count = signal<number | null>(null);
    /** How it ended: "27 ms", "timeout after 120 s". */
    readonly ending = signal("");
    /** Characters that came and are not shown. */
    readonly hidden = signal(0);
    stop: AbortController | null = null;
    /** Where it runs; empty until it has begun. */
    context = "";

    private texts = 0;
    private results = 0;
    private clearFirst = false;
    private waiting: Output[] = [];
    private timer = 0;

    constructor(code = "") {
        this.code.value = code;
    }

    /** It runs, or waits for another one. */
    get isBusy(): boolean {
        return this.state.value === "running" || this.state.value === "waiting";
    }

    begin(): void {
        clearTimeout(this.timer);
        this.timer = this.texts = this.results = 0;
        this.clearFirst = false;
        this.context = "";
        this.waiting = [];
        batch(() => {
            this.outputs.value = [];
            this.hidden.value = 0;
            this.ending.value = "";
            this.count.value = null;
            this.state.value = "waiting";
        });
    }

    /** Shows it soon: a cell may print thousands of lines in a second. */
    add(output: Output): void {
        if (this.clearFirst) this.clear();
        if (output.kind === "text") {
            const room = Math.max(0, MOST_TEXT - this.texts);
            this.texts += output.text.length;
            if (output.text.length > room) {
                this.hidden.value += output.text.length - room;
                output = { ...output, text: output.text.slice(0, room) };
            }
            if (!output.text) return;
        } else if (output.kind === "result" && ++this.results > MOST_RESULTS) return;
        this.waiting.push(output);
        this.timer ||= setTimeout(() => this.flush(), FLUSH_MS);
    }

    clear(wait = false): void {
        this.clearFirst = wait;
        if (wait) return;
        this.waiting = [];
        this.texts = this.results = 0;
        this.outputs.value = [];
    }

    flush(): void {
        clearTimeout(this.timer);
        this.timer = 0;
        const outputs = [...this.outputs.value];
        for (const output of this.waiting) {
            const last = outputs[outputs.length - 1];
            if (output.kind === "text" && last?.kind === "text" && last.stream === output.stream) {
                outputs[outputs.length - 1] = { ...last, text: last.text + output.text };
            } else outputs.push(output);
        }
        this.waiting = [];
        this.outputs.value = outputs;
    }
}

export class Notebook {
    readonly cells = signal<readonly Cell[]>([]);
    readonly language = signal("python");
    /** The id of the context that cells run in; empty: the language's own. */
    readonly context = signal("");
    /** By context: the cell that was asked for last. */
    private readonly last = new Map<string, Promise<void>>();

    constructor(readonly sessionId: string) {
        const codes = readKept(sessionId);
        this.cells.value = (codes.length ? codes : [""]).map((code) => new Cell(code));
    }

    addCell(after?: Cell, code = ""): Cell | null {
        const cells = [...this.cells.value];
        if (cells.length >= MOST_CELLS) return null;
        const cell = new Cell(code);
        cells.splice(after ? cells.indexOf(after) + 1 : cells.length, 0, cell);
        this.cells.value = cells;
        return cell;
    }

    removeCell(cell: Cell): void {
        cell.stop?.abort();
        this.cells.value = this.cells.value.filter((one) => one !== cell);
        if (this.cells.value.length === 0) this.addCell();
        this.keep();
    }

    /** Keeps the code of the cells for a reload of this page, in this tab of the browser alone. */
    keep(): void {
        const text = JSON.stringify(this.cells.value.map((cell) => cell.code.value));
        try {
            if (text.length <= MOST_KEPT) sessionStorage.setItem(storageName(this.sessionId), text);
        } catch {
            // The browser keeps nothing, or has no room: the notebook works without.
        }
    }

    /** Runs it after those of the same context that came before. */
    async run(cell: Cell): Promise<void> {
        if (cell.isBusy) return;
        this.keep();
        cell.begin();
        const stop = (cell.stop = new AbortController());
        const where: Record<string, string> = this.context.value
            ? { context: this.context.value }
            : { language: this.language.value };
        const place = JSON.stringify(where);
        const mine = (this.last.get(place) ?? Promise.resolve()).then(() =>
            withSlot(stop.signal, () => this.runNow(cell, where, stop.signal)),
        );
        this.last.set(place, mine);
        await mine;
        if (cell.state.value === "waiting") cell.state.value = "new"; // it was stopped before its turn
    }

    private async runNow(cell: Cell, where: Record<string, string>, signal: AbortSignal): Promise<void> {
        cell.state.value = "running";
        let ended = false;
        try {
            for await (const event of events("POST", path`/api/sessions/${this.sessionId}/code`, {
                body: { code: cell.code.value, ...where },
                signal,
            })) {
                ended ||= event.kind === "end" || (event.kind === "error" && Boolean(event.data.code));
                take(cell, event.kind, event.data);
            }
            if (!ended)
                cell.add({ kind: "problem", text: "The connection ended before the cell did; it was interrupted." });
        } catch (error) {
            if (!signal.aborted || error instanceof ApiError) cell.add({ kind: "problem", text: describe(error) });
        }
        cell.stop = null;
        cell.flush();
        if (cell.isBusy) cell.state.value = "failed";
    }
}

let running = 0;
const waiting: (() => void)[] = [];

/** Does the work when few others are at work; not at all if it was stopped before. */
async function withSlot(stopped: AbortSignal, work: () => Promise<void>): Promise<void> {
    if (stopped.aborted) return;
    if (running >= MOST_RUNNING) await new Promise<void>((go) => waiting.push(go));
    else running += 1;
    try {
        if (!stopped.aborted) await work();
    } finally {
        const next = waiting.shift(); // it gets this place
        if (next) next();
        else running -= 1;
    }
}

function take(cell: Cell, kind: string, data: any): void {
    if (kind === "started") cell.context = String(data.context_id);
    else if (kind === "stdout" || kind === "stderr")
        cell.add({ kind: "text", stream: kind, text: withoutEscapes(String(data.text)) });
    else if (kind === "result") cell.add({ kind: "result", result: data });
    else if (kind === "clear_output") cell.clear(Boolean(data.wait));
    else if (kind === "error" && data.code)
        cell.add({ kind: "problem", text: [data.detail, data.remedy].filter(Boolean).join(" ") });
    else if (kind === "error") {
        cell.add({
            kind: "error",
            name: String(data.name),
            value: String(data.value),
            traceback: withoutEscapes(String(data.traceback ?? "")),
        });
    } else if (kind === "end") {
        cell.count.value = typeof data.execution_count === "number" ? data.execution_count : null;
        const lost = data.context_lost ? `; the context is lost: ${data.context_lost}` : "";
        const dropped = data.truncated ? "; some of what came was too large and is left out" : "";
        const how = data.reason === "exited" ? "" : `${data.reason} after `;
        cell.ending.value = how + shortDuration(Number(data.duration_ms)) + lost + dropped;
        cell.state.value = data.error || data.reason !== "exited" ? "failed" : "done";
    }
}

function shortDuration(ms: number): string {
    return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

/** Text without the sequences that colour it or move the cursor of a terminal; of a line that was written over, the last. */
export function withoutEscapes(text: string): string {
    const plain = text
        .replace(
            /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])/g,
            "",
        )
        .replaceAll("\r\n", "\n");
    if (!plain.includes("\r")) return plain;
    return plain
        .split("\n")
        .map((line) => line.slice(line.lastIndexOf("\r", line.length - 2) + 1))
        .join("\n")
        .replaceAll("\r", "");
}

const storageName = (sessionId: string): string => `warren-notebook-${sessionId}`;

function readKept(sessionId: string): string[] {
    try {
        const found: unknown = JSON.parse(sessionStorage.getItem(storageName(sessionId)) ?? "[]");
        return Array.isArray(found)
            ? found.filter((code): code is string => typeof code === "string").slice(0, MOST_CELLS)
            : [];
    } catch {
        return [];
    }
}

const notebooks = new Map<string, Notebook>();

export function notebookOf(sessionId: string): Notebook {
    let notebook = notebooks.get(sessionId);
    if (!notebook) {
        const idle = [...notebooks].find(([, one]) => one.cells.value.every((cell) => !cell.isBusy));
        if (notebooks.size >= MOST_NOTEBOOKS && idle) notebooks.delete(idle[0]);
        notebooks.set(sessionId, (notebook = new Notebook(sessionId)));
    }
    return notebook;
}
