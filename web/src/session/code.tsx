// Code contexts as a small notebook.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

import { may } from "../account";
import { get, path, post, remove } from "../api";
import type { TabProps } from "../pages/session";
import { useLoaded } from "../parts/load";
import { attempt } from "../parts/messages";
import { type Cell, type Notebook, notebookOf, type Output } from "./notebook";
import { ResultView } from "./results";

interface Context {
    id: string;
    language: string;
    state: string;
    cwd: string;
    version: string;
    default: boolean;
    lost_reason: string | null;
}

const LANGUAGES = ["python", "javascript", "typescript", "bash", "r"];

export function Code({ session }: TabProps) {
    const id = session.session_id;
    const notebook = notebookOf(id);
    const contexts = useLoaded(
        (signal) => get<{ contexts: Context[] }>(path`/api/sessions/${id}/contexts`, {}, signal),
        [id],
    );
    const fresh = useRef<Cell | null>(null);
    const known = contexts.value.value?.contexts ?? [];

    async function run(cell: Cell, goOn = false) {
        if (goOn) {
            const next = notebook.cells.value[notebook.cells.value.indexOf(cell) + 1];
            fresh.current = next ?? notebook.addCell(cell);
            if (next) focusOn(next);
        }
        const done = notebook.run(cell);
        setTimeout(contexts.again, 400);
        await done;
        await contexts.again();
    }

    return (
        <>
            <Contexts notebook={notebook} known={known} problem={contexts.error.value} again={contexts.again} />
            {notebook.cells.value.map((cell, at) => (
                <CellView
                    key={cell.id}
                    cell={cell}
                    number={at + 1}
                    sessionId={id}
                    takesFocus={fresh.current === cell}
                    onRun={(goOn) => run(cell, goOn)}
                    onInterrupt={() => interrupt(notebook, cell)}
                    onKeep={() => notebook.keep()}
                    onRemove={() => notebook.removeCell(cell)}
                    onAdd={() => (fresh.current = notebook.addCell(cell))}
                />
            ))}
            <div class="row">
                <button type="button" class="plain" onClick={() => (fresh.current = notebook.addCell())}>
                    Add a cell
                </button>
                <span class="note" id="cell-keys">
                    Ctrl-Enter runs a cell, Shift-Enter runs it and goes on to the next. Escape, then Tab, leaves the
                    code.
                </span>
            </div>
        </>
    );
}

function focusOn(cell: Cell): void {
    document.getElementById(`${cell.id}-code`)?.focus();
}

function interrupt(notebook: Notebook, cell: Cell): void {
    if (!cell.context)
        cell.stop?.abort(); // it waits for its turn, or for the context to start
    else
        attempt(() => post(path`/api/sessions/${notebook.sessionId}/contexts/${cell.context}/interrupt`)).then(
            (done) => done || cell.stop?.abort(),
        );
}

function Contexts({
    notebook,
    known,
    problem,
    again,
}: {
    notebook: Notebook;
    known: readonly Context[];
    problem: string;
    again: () => Promise<void>;
}) {
    const chosen = notebook.context.value || `ctx_${notebook.language.value}`;
    const context = known.find((one) => one.id === chosen);
    const others = LANGUAGES.filter((language) => !known.some((one) => one.id === `ctx_${language}`));
    const mayRun = may("exec");
    const base = path`/api/sessions/${notebook.sessionId}/contexts`;

    function choose(value: string) {
        const found = known.find((one) => one.id === value);
        notebook.language.value = found?.language ?? value.replace(/^ctx_/, "");
        notebook.context.value = found && !found.default ? found.id : "";
    }
    const create = () =>
        attempt(async () => {
            const made = await post<Context>(base, { language: notebook.language.value });
            await again();
            notebook.context.value = made.id;
        }, "A new context is ready");
    const restart = () =>
        attempt(async () => {
            await post(`${base}${path`/${chosen}/restart`}`);
            await again();
        }, "The context is empty again");
    const end = () =>
        attempt(async () => {
            await remove(`${base}${path`/${chosen}`}`);
            notebook.context.value = "";
            await again();
        }, "The context has ended");

    return (
        <div class="row contexts">
            <label>
                Context
                <select value={chosen} onChange={(event) => choose(event.currentTarget.value)}>
                    {known.map((one) => (
                        <option key={one.id} value={one.id}>
                            {one.language} {one.version}
                            {one.default ? "" : ` · ${one.id.slice(-8)}`}
                        </option>
                    ))}
                    {others.map((language) => (
                        <option key={language} value={`ctx_${language}`}>
                            {language} (starts with the first cell)
                        </option>
                    ))}
                </select>
            </label>
            {context && (
                <span
                    class={`state ${context.state === "idle" ? "ready" : context.state === "lost" ? "lost" : "pending"}`}
                    role="status"
                >
                    {context.state}
                    {context.lost_reason ? `: ${context.lost_reason}` : ""}
                </span>
            )}
            {mayRun && (
                <button type="button" class="plain" onClick={create}>
                    New context
                </button>
            )}
            {mayRun && context && (
                <button type="button" class="plain" onClick={restart}>
                    Restart
                </button>
            )}
            {mayRun && context && (
                <button type="button" class="danger" onClick={end}>
                    Delete
                </button>
            )}
            {problem && (
                <span class="note error" role="alert">
                    {problem}
                </span>
            )}
        </div>
    );
}

interface CellProps {
    cell: Cell;
    number: number;
    sessionId: string;
    takesFocus: boolean;
    onRun: (goOn: boolean) => void;
    onInterrupt: () => void;
    onKeep: () => void;
    onRemove: () => void;
    onAdd: () => void;
}

function CellView({ cell, number, sessionId, takesFocus, onRun, onInterrupt, onKeep, onRemove, onAdd }: CellProps) {
    const code = useRef<HTMLTextAreaElement>(null);
    const tabLeaves = useSignal(false);
    const busy = cell.isBusy;
    const lines = Math.min(30, Math.max(3, cell.code.value.split("\n").length + 1));
    useEffect(() => {
        if (takesFocus) code.current!.focus();
    }, []);

    function press(event: KeyboardEvent) {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey || event.shiftKey)) {
            event.preventDefault();
            if (may("exec")) onRun(event.shiftKey);
        } else if (event.key === "Escape") tabLeaves.value = true;
        else if (event.key === "Tab" && !event.shiftKey && !tabLeaves.value) {
            event.preventDefault();
            insert(event.currentTarget as HTMLTextAreaElement, "    ");
            cell.code.value = code.current!.value;
        }
    }

    return (
        <section class={`cell card ${cell.state.value}`} aria-label={`Cell ${number}`}>
            <div class="code">
                <span class="count" aria-hidden="true">
                    [{busy ? "*" : (cell.count.value ?? " ")}]
                </span>
                <textarea
                    ref={code}
                    id={`${cell.id}-code`}
                    class="mono"
                    rows={lines}
                    value={cell.code.value}
                    spellcheck={false}
                    autocapitalize="off"
                    autocomplete="off"
                    aria-label={`Code of cell ${number}`}
                    aria-describedby="cell-keys"
                    placeholder="Code"
                    onKeyDown={press}
                    onFocus={() => (tabLeaves.value = false)}
                    onBlur={onKeep}
                    onInput={(event) => (cell.code.value = event.currentTarget.value)}
                />
                <span class="cell-buttons">
                    {busy ? (
                        <button
                            type="button"
                            class="danger"
                            onClick={onInterrupt}
                            aria-label={`Interrupt cell ${number}`}
                        >
                            Stop
                        </button>
                    ) : (
                        <button
                            type="button"
                            disabled={!may("exec")}
                            onClick={() => onRun(false)}
                            aria-label={`Run cell ${number}`}
                        >
                            Run
                        </button>
                    )}
                    <button
                        type="button"
                        class="quiet"
                        title="Add a cell below"
                        aria-label={`Add a cell below cell ${number}`}
                        onClick={onAdd}
                    >
                        +
                    </button>
                    <button
                        type="button"
                        class="quiet"
                        title="Remove this cell"
                        aria-label={`Remove cell ${number}`}
                        onClick={onRemove}
                    >
                        ×
                    </button>
                </span>
            </div>
            <div
                class="outputs"
                aria-live="polite"
                aria-busy={busy}
                aria-label={`Output of cell ${number}`}
                role="region"
            >
                {cell.outputs.value.map((output, at) => (
                    <OutputView key={at} output={output} sessionId={sessionId} name={`cell-${number}-${at + 1}`} />
                ))}
                {cell.state.value === "waiting" && <p class="note">Waits for the cell before it.</p>}
                {cell.hidden.value > 0 && (
                    <p class="note">{cell.hidden.value} more characters came and are not shown.</p>
                )}
                {cell.ending.value && <p class="note ending">{cell.ending.value}</p>}
            </div>
        </section>
    );
}

function insert(field: HTMLTextAreaElement, text: string): void {
    field.setRangeText(text, field.selectionStart, field.selectionEnd, "end");
}

function OutputView({ output, sessionId, name }: { output: Output; sessionId: string; name: string }) {
    if (output.kind === "text") return <pre class={output.stream}>{output.text}</pre>;
    if (output.kind === "result") return <ResultView result={output.result} sessionId={sessionId} name={name} />;
    if (output.kind === "problem")
        return (
            <p class="note error" role="alert">
                {output.text}
            </p>
        );
    return (
        <div class="raised-error" role="alert">
            <strong>{output.value ? `${output.name}: ${output.value}` : output.name}</strong>
            {output.traceback && <pre>{output.traceback}</pre>}
        </div>
    );
}
