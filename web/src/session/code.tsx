// The code tab: a small notebook, whose cells run in contexts of the session.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

import { apiPath, get, post, remove } from "../api/client";
import type { ContextList, ContextView } from "../api/schemas";
import { hasScope } from "../auth/account";
import { ErrorNote } from "../components/error_note";
import { runAction } from "../components/notifications";
import { useRequest } from "../components/request";
import type { TabProps } from "../pages/session";
import { type Cell, type Notebook, notebookOf, type Output } from "./notebook";
import { ResultView } from "./results";

const LANGUAGES = ["python", "javascript", "typescript", "bash", "r", "java"];

export function CodeTab({ session }: TabProps) {
    const id = session.session_id;
    const notebook = notebookOf(id);
    const contexts = useRequest((signal) => get<ContextList>(apiPath`/api/sessions/${id}/contexts`, {}, signal), [id]);
    const focusTarget = useRef<Cell | null>(null);
    const known = contexts.data.value?.contexts ?? [];

    async function run(cell: Cell, advance = false) {
        if (advance) {
            const next = notebook.cells.value[notebook.cells.value.indexOf(cell) + 1];
            focusTarget.current = next ?? notebook.addCell(cell);
            if (next) focusCell(next);
        }
        const done = notebook.run(cell);
        setTimeout(contexts.reload, 400);
        await done;
        await contexts.reload();
    }

    return (
        <>
            <ContextBar notebook={notebook} contexts={known} error={contexts.error.value} reload={contexts.reload} />
            {notebook.cells.value.map((cell, index) => (
                <CellView
                    key={cell.id}
                    cell={cell}
                    number={index + 1}
                    sessionId={id}
                    takesFocus={focusTarget.current === cell}
                    onRun={(advance) => run(cell, advance)}
                    onInterrupt={() => interrupt(notebook, cell)}
                    onBlur={() => notebook.save()}
                    onRemove={() => notebook.removeCell(cell)}
                    onAdd={() => (focusTarget.current = notebook.addCell(cell))}
                />
            ))}
            <div class="row">
                <button type="button" class="plain" onClick={() => (focusTarget.current = notebook.addCell())}>
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

function focusCell(cell: Cell): void {
    document.getElementById(`${cell.id}-code`)?.focus();
}

function interrupt(notebook: Notebook, cell: Cell): void {
    if (!cell.context)
        cell.controller?.abort(); // it waits for its turn, or for the context to start
    else
        runAction(() => post(apiPath`/api/sessions/${notebook.sessionId}/contexts/${cell.context}/interrupt`)).then(
            (done) => done || cell.controller?.abort(),
        );
}

function ContextBar({
    notebook,
    contexts,
    error,
    reload,
}: {
    notebook: Notebook;
    contexts: readonly ContextView[];
    error: string;
    reload: () => Promise<void>;
}) {
    const selected = notebook.context.value || `ctx_${notebook.language.value}`;
    const context = contexts.find(({ id }) => id === selected);
    const unstarted = LANGUAGES.filter((language) => !contexts.some((context) => context.id === `ctx_${language}`));
    const canRun = hasScope("exec");
    const base = apiPath`/api/sessions/${notebook.sessionId}/contexts`;

    function select(value: string) {
        const found = contexts.find((context) => context.id === value);
        notebook.language.value = found?.language ?? value.replace(/^ctx_/, "");
        notebook.context.value = found && !found.default ? found.id : "";
    }
    const create = () =>
        runAction(async () => {
            const created = await post<ContextView>(base, { language: notebook.language.value });
            await reload();
            notebook.context.value = created.id;
        }, "A new context is ready");
    const restart = () =>
        runAction(async () => {
            await post(`${base}${apiPath`/${selected}/restart`}`);
            await reload();
        }, "The context is empty again");
    const end = () =>
        runAction(async () => {
            await remove(`${base}${apiPath`/${selected}`}`);
            notebook.context.value = "";
            await reload();
        }, "The context has ended");

    return (
        <div class="row contexts">
            <label>
                Context
                <select value={selected} onChange={(event) => select(event.currentTarget.value)}>
                    {contexts.map((context) => (
                        <option key={context.id} value={context.id}>
                            {context.language} {context.version}
                            {context.default ? "" : ` · ${context.id.slice(-8)}`}
                        </option>
                    ))}
                    {unstarted.map((language) => (
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
            {canRun && (
                <button type="button" class="plain" onClick={create}>
                    New context
                </button>
            )}
            {canRun && context && (
                <button type="button" class="plain" onClick={restart}>
                    Restart
                </button>
            )}
            {canRun && context && (
                <button type="button" class="danger" onClick={end}>
                    Delete
                </button>
            )}
            {error && (
                <span class="note error" role="alert">
                    {error}
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
    onRun: (advance: boolean) => void;
    onInterrupt: () => void;
    onBlur: () => void;
    onRemove: () => void;
    onAdd: () => void;
}

function CellView({ cell, number, sessionId, takesFocus, onRun, onInterrupt, onBlur, onRemove, onAdd }: CellProps) {
    const code = useRef<HTMLTextAreaElement>(null);
    const tabMovesFocus = useSignal(false);
    const isBusy = cell.isBusy;
    const lines = Math.min(30, Math.max(3, cell.code.value.split("\n").length + 1));
    useEffect(() => {
        if (takesFocus) code.current!.focus();
    }, []);

    function handleKey(event: KeyboardEvent) {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey || event.shiftKey)) {
            event.preventDefault();
            if (hasScope("exec")) onRun(event.shiftKey);
        } else if (event.key === "Escape") tabMovesFocus.value = true;
        else if (event.key === "Tab" && !event.shiftKey && !tabMovesFocus.value) {
            event.preventDefault();
            insertText(event.currentTarget as HTMLTextAreaElement, "    ");
            cell.code.value = code.current!.value;
        }
    }

    return (
        <section class={`cell card ${cell.state.value}`} aria-label={`Cell ${number}`}>
            <div class="code">
                <span class="count" aria-hidden="true">
                    [{isBusy ? "*" : (cell.executionCount.value ?? " ")}]
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
                    onKeyDown={handleKey}
                    onFocus={() => (tabMovesFocus.value = false)}
                    onBlur={onBlur}
                    onInput={(event) => (cell.code.value = event.currentTarget.value)}
                />
                <span class="cell-buttons">
                    {isBusy ? (
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
                            disabled={!hasScope("exec")}
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
                aria-busy={isBusy}
                aria-label={`Output of cell ${number}`}
                role="region"
            >
                {cell.outputs.value.map((output, index) => (
                    <OutputView
                        key={index}
                        output={output}
                        sessionId={sessionId}
                        name={`cell-${number}-${index + 1}`}
                    />
                ))}
                {cell.state.value === "waiting" && <p class="note">Waits for the cell before it.</p>}
                {cell.hiddenCharacters.value > 0 && (
                    <p class="note">{cell.hiddenCharacters.value} more characters came and are not shown.</p>
                )}
                {cell.outcome.value && <p class="note ending">{cell.outcome.value}</p>}
            </div>
        </section>
    );
}

function insertText(field: HTMLTextAreaElement, text: string): void {
    field.setRangeText(text, field.selectionStart, field.selectionEnd, "end");
}

function OutputView({ output, sessionId, name }: { output: Output; sessionId: string; name: string }) {
    if (output.kind === "text") return <pre class={output.stream}>{output.text}</pre>;
    if (output.kind === "result") return <ResultView result={output.result} sessionId={sessionId} name={name} />;
    if (output.kind === "problem") return <ErrorNote text={output.text} />;
    return (
        <div class="raised-error" role="alert">
            <strong>{output.value ? `${output.name}: ${output.value}` : output.name}</strong>
            {output.traceback && <pre>{output.traceback}</pre>}
        </div>
    );
}
