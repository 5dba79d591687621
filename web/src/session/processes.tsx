// The commands that run in the background of a session, and those that have ended.

import { useSignal } from "@preact/signals";

import { apiPath, get, post, remove } from "../api/client";
import type { ExecView, KilledView, ProcessBody, ProcessList, ProcessView } from "../api/schemas";
import { hasScope } from "../auth/account";
import { SelectField, TextField } from "../components/fields";
import { ConfirmDialog, FormDialog } from "../components/form_dialog";
import { notify, runAction } from "../components/notifications";
import { RequestView, useRequest } from "../components/request";
import { Table } from "../components/table";
import { escapeName, escapeText } from "../lib/escape";
import { formatBytes, formatDuration } from "../lib/format";
import type { TabProps } from "../pages/session";
import { ProcessOutput } from "./process_output";

const INTERVAL_MS = 5_000;
const MAX_COMMAND = 300; // characters that are shown
const SIGNALS = ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "STOP", "CONT", "KILL"];

type OpenDialog = { kind: "start" | "kill-all" } | { kind: "signal" | "kill"; process: ProcessView };

export function ProcessesTab({ session }: TabProps) {
    const sessionUrl = apiPath`/api/sessions/${session.session_id}`;
    const loaded = useRequest(
        (signal) => get<ProcessList>(`${sessionUrl}/processes`, {}, signal),
        [sessionUrl],
        INTERVAL_MS,
    );
    const dialog = useSignal<OpenDialog | null>(null);
    const watchedId = useSignal("");
    const close = () => (dialog.value = null);
    const urlOf = (processId: string) => `${sessionUrl}/processes/${encodeURIComponent(processId)}`;
    async function forget(process: ProcessView) {
        if (watchedId.value === process.process_id) watchedId.value = "";
        if (await runAction(() => remove(urlOf(process.process_id)), "It is forgotten.")) loaded.reload();
    }
    async function kill(process: ProcessView) {
        const result = await post<ExecView>(`${urlOf(process.process_id)}/kill`, {});
        notify(`It has ended, with ${result.killed} processes that had to be killed.`);
        loaded.reload();
    }
    async function killAll() {
        const { killed } = await post<KilledView>(`${sessionUrl}/kill-all`);
        notify(`${killed} processes were ended.`);
        loaded.reload();
    }
    return (
        <>
            {hasScope("exec") && (
                <div class="row">
                    <button type="button" onClick={() => (dialog.value = { kind: "start" })}>
                        Start a command
                    </button>
                    <button type="button" class="danger" onClick={() => (dialog.value = { kind: "kill-all" })}>
                        End everything that runs
                    </button>
                </div>
            )}
            <RequestView request={loaded}>
                {({ processes }) => (
                    <Table
                        label="Processes"
                        rows={sortProcesses(processes)}
                        keyOf={(process) => process.process_id}
                        empty="Nothing runs in the background."
                        columns={[
                            {
                                name: "Command",
                                render: (process) => (
                                    <>
                                        <code>{shortCommand(process)}</code>
                                        <small class="mono">{escapeName(process.process_id)}</small>
                                    </>
                                ),
                            },
                            { name: "State", render: (process) => <StateCell process={process} /> },
                            { name: "User", render: (process) => escapeName(process.user) },
                            {
                                name: "Started",
                                right: true,
                                render: (process) => `${formatDuration(process.started_s_ago)} ago`,
                            },
                            { name: "Output", right: true, render: (process) => formatBytes(process.bytes_total) },
                            {
                                name: "Actions",
                                render: (process) => (
                                    <span class="actions">
                                        <button
                                            type="button"
                                            class="plain small"
                                            aria-expanded={watchedId.value === process.process_id}
                                            aria-label={`Output of ${escapeName(process.process_id)}`}
                                            onClick={() =>
                                                (watchedId.value =
                                                    watchedId.value === process.process_id ? "" : process.process_id)
                                            }
                                        >
                                            Output
                                        </button>
                                        {hasScope("exec") && process.running && (
                                            <button
                                                type="button"
                                                class="plain small"
                                                aria-label={`Signal ${escapeName(process.process_id)}`}
                                                onClick={() => (dialog.value = { kind: "signal", process: process })}
                                            >
                                                Signal
                                            </button>
                                        )}
                                        {hasScope("exec") && process.running && (
                                            <button
                                                type="button"
                                                class="danger small"
                                                aria-label={`Kill ${escapeName(process.process_id)}`}
                                                onClick={() => (dialog.value = { kind: "kill", process: process })}
                                            >
                                                Kill
                                            </button>
                                        )}
                                        {hasScope("exec") && !process.running && (
                                            <button
                                                type="button"
                                                class="plain small"
                                                aria-label={`Forget ${escapeName(process.process_id)}`}
                                                onClick={() => forget(process)}
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
            </RequestView>
            {watchedId.value && (
                <ProcessOutput
                    key={watchedId.value}
                    url={urlOf(watchedId.value)}
                    processId={watchedId.value}
                    onEnd={loaded.reload}
                    onClose={() => (watchedId.value = "")}
                />
            )}
            {dialog.value?.kind === "start" && (
                <StartDialog
                    sessionUrl={sessionUrl}
                    onStarted={(id) => {
                        watchedId.value = id;
                        loaded.reload();
                    }}
                    onClose={close}
                />
            )}
            {dialog.value?.kind === "signal" && (
                <SignalDialog
                    process={dialog.value.process}
                    url={urlOf(dialog.value.process.process_id)}
                    onDone={loaded.reload}
                    onClose={close}
                />
            )}
            {dialog.value?.kind === "kill" && (
                <ConfirmDialog
                    title="Kill this command?"
                    action="Kill it"
                    onConfirm={() => kill((dialog.value as { process: ProcessView }).process)}
                    onClose={close}
                >
                    <p>
                        <code>{shortCommand(dialog.value.process)}</code> and everything that it started end.
                    </p>
                </ConfirmDialog>
            )}
            {dialog.value?.kind === "kill-all" && (
                <ConfirmDialog
                    title="End everything that runs?"
                    action="End everything"
                    onConfirm={killAll}
                    onClose={close}
                >
                    <p>Commands, terminals, interpreters and whatever they started end at once. Files stay.</p>
                </ConfirmDialog>
            )}
        </>
    );
}

function StateCell({ process }: { process: ProcessView }) {
    if (process.running)
        return (
            <>
                <span class="state running">running</span>
                {process.terminal && <small>terminal</small>}
            </>
        );
    return (
        <>
            <span class={`state ${process.exit_code === 0 ? "ok" : "failed"}`}>
                {process.reason === "exited" ? `exit ${process.exit_code}` : process.reason}
            </span>
            {process.background > 0 && <small>{process.background} left running</small>}
        </>
    );
}

function shortCommand({ command }: ProcessView): string {
    const text = escapeText(command);
    return text.length > MAX_COMMAND ? `${text.slice(0, MAX_COMMAND)}…` : text;
}

/** Sorts running processes before the others, each with the newest first. */
function sortProcesses(processes: readonly ProcessView[]): ProcessView[] {
    return [...processes].sort(
        (one, other) => Number(other.running) - Number(one.running) || one.started_s_ago - other.started_s_ago,
    );
}

interface StartDialogProps {
    sessionUrl: string;
    onStarted: (id: string) => void;
    onClose: () => void;
}

function StartDialog({ sessionUrl, onStarted, onClose }: StartDialogProps) {
    const command = useSignal("");
    const name = useSignal("");
    const cwd = useSignal("");
    async function submit() {
        const body: ProcessBody = { command: command.value, process_id: name.value.trim(), cwd: cwd.value.trim() };
        onStarted((await post<ProcessView>(`${sessionUrl}/processes`, body)).process_id);
    }
    return (
        <FormDialog title="Start a command" submitLabel="Start" onSubmit={submit} onClose={onClose}>
            <TextField
                label="Command"
                value={command}
                placeholder="python3 -m http.server 8080"
                hint="A line for bash. It goes on when this page is closed."
                required
            />
            <TextField label="Name" value={name} hint="Of your own, if you like" />
            <TextField label="Directory" value={cwd} placeholder="/workspace" />
        </FormDialog>
    );
}

interface SignalDialogProps {
    process: ProcessView;
    url: string;
    onDone: () => void;
    onClose: () => void;
}

function SignalDialog({ process, url, onDone, onClose }: SignalDialogProps) {
    const signal = useSignal("TERM");
    async function submit() {
        const send = () => post(`${url}/signal`, { signal: signal.value });
        if (await runAction(send, `SIG${signal.value} was sent.`)) onDone();
    }
    return (
        <FormDialog title="Send a signal" submitLabel="Send" onSubmit={submit} onClose={onClose}>
            <p>
                <code>{shortCommand(process)}</code>
            </p>
            <SelectField
                label="Signal"
                value={signal.value}
                options={SIGNALS.map((name) => [name, name])}
                onChange={(name) => (signal.value = name)}
            />
        </FormDialog>
    );
}
