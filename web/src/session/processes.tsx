// What runs in a session, and what has run in the background: started, watched and ended.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

import { may } from "../account";
import { ApiError, events, get, path, post, remove } from "../api";
import type { TabProps } from "../pages/session";
import { Confirm } from "../parts/confirm";
import { Dialog } from "../parts/dialog";
import { TextField } from "../parts/fields";
import { Shown, useLoaded } from "../parts/load";
import { attempt, describe, tell } from "../parts/messages";
import { Table } from "../parts/table";
import { bytes, duration } from "../parts/units";
import { legible, visible } from "../parts/visible";
import { newScreen } from "../terminal/screen";
import type { ProcessInfo } from "../types";

const AGAIN_MS = 5_000;
const MOST_COMMAND = 300; // characters that are shown of one
const SIGNALS = ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "STOP", "CONT", "KILL"];

type Asked = { what: "start" | "kill-all" } | { what: "signal" | "kill"; process: ProcessInfo };

export function Processes({ session }: TabProps) {
    const place = path`/api/sessions/${session.session_id}`;
    const found = useLoaded(
        (signal) => get<{ processes: ProcessInfo[] }>(`${place}/processes`, {}, signal),
        [place],
        AGAIN_MS,
    );
    const asked = useSignal<Asked | null>(null);
    const watched = useSignal("");
    const close = () => (asked.value = null);
    const of = (process: ProcessInfo) => `${place}/processes/${encodeURIComponent(process.process_id)}`;
    async function forget(process: ProcessInfo) {
        if (watched.value === process.process_id) watched.value = "";
        if (await attempt(() => remove(of(process)), "It is forgotten.")) found.again();
    }
    async function kill(process: ProcessInfo) {
        const result = await post<{ killed: number }>(`${of(process)}/kill`, {});
        tell(`It has ended, with ${result.killed} processes that had to be killed.`);
        found.again();
    }
    async function killAll() {
        const { killed } = await post<{ killed: number }>(`${place}/kill-all`);
        tell(`${killed} processes were ended.`);
        found.again();
    }
    return (
        <>
            {may("exec") && (
                <div class="row">
                    <button type="button" onClick={() => (asked.value = { what: "start" })}>
                        Start a command
                    </button>
                    <button type="button" class="danger" onClick={() => (asked.value = { what: "kill-all" })}>
                        End everything that runs
                    </button>
                </div>
            )}
            <Shown of={found}>
                {({ processes }) => (
                    <Table
                        label="Processes"
                        rows={[...processes].sort(
                            (one, other) =>
                                Number(other.running) - Number(one.running) || one.started_s_ago - other.started_s_ago,
                        )}
                        keyOf={(one) => one.process_id}
                        empty="Nothing runs in the background."
                        columns={[
                            {
                                name: "Command",
                                show: (one) => (
                                    <>
                                        <code>{shorten(legible(one.command))}</code>
                                        <small class="mono">{visible(one.process_id)}</small>
                                    </>
                                ),
                            },
                            { name: "State", show: (one) => <State of={one} /> },
                            { name: "User", show: (one) => visible(one.user) },
                            { name: "Started", right: true, show: (one) => `${duration(one.started_s_ago)} ago` },
                            { name: "Output", right: true, show: (one) => bytes(one.bytes_total) },
                            {
                                name: "Actions",
                                show: (one) => (
                                    <span class="actions">
                                        <button
                                            type="button"
                                            class="plain small"
                                            aria-expanded={watched.value === one.process_id}
                                            aria-label={`Output of ${visible(one.process_id)}`}
                                            onClick={() =>
                                                (watched.value = watched.value === one.process_id ? "" : one.process_id)
                                            }
                                        >
                                            Output
                                        </button>
                                        {may("exec") && one.running && (
                                            <button
                                                type="button"
                                                class="plain small"
                                                aria-label={`Signal ${visible(one.process_id)}`}
                                                onClick={() => (asked.value = { what: "signal", process: one })}
                                            >
                                                Signal
                                            </button>
                                        )}
                                        {may("exec") && one.running && (
                                            <button
                                                type="button"
                                                class="danger small"
                                                aria-label={`Kill ${visible(one.process_id)}`}
                                                onClick={() => (asked.value = { what: "kill", process: one })}
                                            >
                                                Kill
                                            </button>
                                        )}
                                        {may("exec") && !one.running && (
                                            <button
                                                type="button"
                                                class="plain small"
                                                aria-label={`Forget ${visible(one.process_id)}`}
                                                onClick={() => forget(one)}
                                            >
                                                Forget
                                            </button>
                                        )}
                                    </span>
                                ),
                            },
                        ]}
                    />
                )}
            </Shown>
            {watched.value && (
                <Output
                    key={watched.value}
                    place={place}
                    processId={watched.value}
                    onEnd={found.again}
                    onClose={() => (watched.value = "")}
                />
            )}
            {asked.value?.what === "start" && (
                <Start
                    place={place}
                    onStarted={(id) => {
                        watched.value = id;
                        found.again();
                    }}
                    onClose={close}
                />
            )}
            {asked.value?.what === "signal" && (
                <Signal
                    process={asked.value.process}
                    place={of(asked.value.process)}
                    onDone={found.again}
                    onClose={close}
                />
            )}
            {asked.value?.what === "kill" && (
                <Confirm
                    title="Kill this command?"
                    action="Kill it"
                    onConfirm={() => kill((asked.value as { process: ProcessInfo }).process)}
                    onClose={close}
                >
                    <p>
                        <code>{shorten(legible(asked.value.process.command))}</code> and everything that it started end.
                    </p>
                </Confirm>
            )}
            {asked.value?.what === "kill-all" && (
                <Confirm title="End everything that runs?" action="End everything" onConfirm={killAll} onClose={close}>
                    <p>Commands, terminals, interpreters and whatever they started end at once. Files stay.</p>
                </Confirm>
            )}
        </>
    );
}

function State({ of }: { of: ProcessInfo }) {
    if (of.running)
        return (
            <>
                <span class="state running">running</span>
                {of.terminal && <small>terminal</small>}
            </>
        );
    return (
        <>
            <span class={`state ${of.exit_code === 0 ? "ok" : "failed"}`}>
                {of.reason === "exited" ? `exit ${of.exit_code}` : of.reason}
            </span>
            {of.background > 0 && <small>{of.background} left running</small>}
        </>
    );
}

const shorten = (text: string): string => (text.length > MOST_COMMAND ? `${text.slice(0, MOST_COMMAND)}…` : text);

function Start({ place, onStarted, onClose }: { place: string; onStarted: (id: string) => void; onClose: () => void }) {
    const command = useSignal("");
    const name = useSignal("");
    const cwd = useSignal("");
    const error = useSignal("");
    async function submit(event: Event) {
        event.preventDefault();
        try {
            const body = { command: command.value, process_id: name.value.trim(), cwd: cwd.value.trim() };
            const made = await post<ProcessInfo>(`${place}/processes`, body);
            onStarted(made.process_id);
            onClose();
        } catch (failure) {
            error.value = describe(failure);
        }
    }
    return (
        <Dialog title="Start a command" onClose={onClose}>
            <form onSubmit={submit}>
                <TextField
                    label="Command"
                    value={command}
                    placeholder="python3 -m http.server 8080"
                    hint="A line for bash. It goes on when this page is closed."
                    required
                />
                <TextField label="Name" value={name} hint="Of your own, if you like" />
                <TextField label="Directory" value={cwd} placeholder="/workspace" />
                {error.value && (
                    <p class="note error" role="alert">
                        {error.value}
                    </p>
                )}
                <div class="buttons">
                    <button type="button" class="plain" onClick={onClose}>
                        Cancel
                    </button>
                    <button type="submit">Start</button>
                </div>
            </form>
        </Dialog>
    );
}

function Signal({
    process,
    place,
    onDone,
    onClose,
}: {
    process: ProcessInfo;
    place: string;
    onDone: () => void;
    onClose: () => void;
}) {
    const signal = useSignal("TERM");
    async function submit(event: Event) {
        event.preventDefault();
        if (await attempt(() => post(`${place}/signal`, { signal: signal.value }), `SIG${signal.value} was sent.`))
            onDone();
        onClose();
    }
    return (
        <Dialog title="Send a signal" onClose={onClose}>
            <form onSubmit={submit}>
                <p>
                    <code>{shorten(legible(process.command))}</code>
                </p>
                <label>
                    Signal
                    <select value={signal.value} onChange={(event) => (signal.value = event.currentTarget.value)}>
                        {SIGNALS.map((one) => (
                            <option key={one} value={one}>
                                {one}
                            </option>
                        ))}
                    </select>
                </label>
                <div class="buttons">
                    <button type="button" class="plain" onClick={onClose}>
                        Cancel
                    </button>
                    <button type="submit">Send</button>
                </div>
            </form>
        </Dialog>
    );
}

/** The output as it comes, on a screen that takes no input. Reading stops while the page is hidden: a reader that lags
 *  behind would hold the command back. */
function Output({
    place,
    processId,
    onEnd,
    onClose,
}: {
    place: string;
    processId: string;
    onEnd: () => void;
    onClose: () => void;
}) {
    const holder = useRef<HTMLDivElement>(null);
    const status = useSignal("Reading…");
    useEffect(() => {
        const screen = newScreen(holder.current!, {
            readOnly: true,
            screenReader: false,
            onLink: () => tell("Links in the output of commands are not opened."),
        });
        screen.fit.fit();
        screen.terminal.textarea!.setAttribute("aria-label", "Output");
        let offset = 0;
        let stop: AbortController | null = null;
        let isOver = false;
        async function read() {
            if (stop || isOver || document.hidden) return;
            const { signal } = (stop = new AbortController());
            try {
                const query = { offset, encoding: "base64" };
                for await (const { kind, data } of events(
                    "GET",
                    `${place}/processes/${encodeURIComponent(processId)}/output`,
                    { query, signal },
                )) {
                    if (signal.aborted) return;
                    if (kind === "output") await show(data);
                    else if (kind === "result" || kind === "error") {
                        isOver = true;
                        status.value =
                            kind === "error"
                                ? data.detail
                                : data.reason === "exited"
                                  ? `It ended with ${data.exit_code}.`
                                  : `It ended: ${data.reason}.`;
                        onEnd();
                    }
                }
            } catch (failure) {
                if (!signal.aborted) status.value = describe(failure);
                isOver = failure instanceof ApiError && !failure.isAway;
            }
            stop = null;
            if (!isOver && !signal.aborted) setTimeout(read, 2000);
        }
        async function show({
            data,
            offset: from,
            next_offset,
            stream,
        }: {
            data: string;
            offset: number;
            next_offset: number;
            stream: string;
        }) {
            if (from > offset) screen.terminal.write("\x18\r\n\x1b[0;2m[a part of the output was not kept]\x1b[0m\r\n");
            offset = next_offset;
            status.value = "It runs.";
            screen.terminal.options.convertEol = stream !== "terminal";
            const raw = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
            await new Promise<void>((resolve) => screen.terminal.write(raw, resolve));
        }
        function follow() {
            if (!document.hidden) return read();
            stop?.abort();
            stop = null;
        }
        document.addEventListener("visibilitychange", follow);
        const observer = new ResizeObserver(() => screen.fit.fit());
        observer.observe(holder.current!);
        read();
        return () => {
            isOver = true;
            stop?.abort();
            observer.disconnect();
            document.removeEventListener("visibilitychange", follow);
            screen.dispose();
        };
    }, []);
    return (
        <section class="card" aria-label={`Output of ${visible(processId)}`}>
            <div class="terminal-bar">
                <h2 class="mono">{visible(processId)}</h2>
                <span class="note" role="status">
                    {status.value}
                </span>
                <span class="grow" />
                <button type="button" class="plain small" onClick={onClose}>
                    Close
                </button>
            </div>
            <div ref={holder} class="processes-output" />
        </section>
    );
}
