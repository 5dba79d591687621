// The terminals of a session. They continue without this page, which finds them again with their screens.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

import { apiPath, get, remove } from "../api/client";
import type { ProcessList, ProcessView } from "../api/schemas";
import { Dialog } from "../components/dialog";
import { runAction } from "../components/notifications";
import { RequestView, useRequest } from "../components/request";
import { Tabs } from "../components/tabs";
import { escapeText } from "../lib/escape";
import type { TabProps } from "../pages/session";
import { newTerminalId } from "./protocol";
import { TerminalView } from "./view";

interface OpenTerminal {
    processId: string;
    label: string;
    isNew: boolean;
}

const SHELL = "exec bash -l";

export function TerminalsTab({ session }: TabProps) {
    const loaded = useRequest(
        (signal) => get<ProcessList>(apiPath`/api/sessions/${session.session_id}/processes`, {}, signal),
        [],
        10_000,
    );
    return (
        <RequestView request={loaded}>
            {({ processes }) => <TerminalTabs sessionId={session.session_id} processes={processes} />}
        </RequestView>
    );
}

function TerminalTabs({ sessionId, processes }: { sessionId: string; processes: ProcessView[] }) {
    const open = useSignal<OpenTerminal[]>([]);
    const selectedId = useSignal("");
    const mountedIds = useSignal<ReadonlySet<string>>(new Set());
    const closingId = useSignal("");
    const endedIds = useSignal<ReadonlySet<string>>(new Set());

    useEffect(() => {
        const running = processes.filter(
            (process) => process.terminal && process.running && !endedIds.value.has(process.process_id),
        );
        running.sort((one, other) => other.started_s_ago - one.started_s_ago);
        const added = running.filter((process) => !open.value.some((tab) => tab.processId === process.process_id));
        if (added.length)
            open.value = [
                ...open.value,
                ...added.map((process, index) => ({
                    processId: process.process_id,
                    label: labelOf(process, open.value.length + index + 1),
                    isNew: false,
                })),
            ];
        if (!selectedId.value && open.value[0])
            select(sessionStorage.getItem(storageKey) ?? "", open.value[0].processId);
    }, [processes]);

    const storageKey = `warren.terminal.${sessionId}`;
    function select(processId: string, fallback = "") {
        const id = open.value.some((terminal) => terminal.processId === processId) ? processId : fallback;
        selectedId.value = id;
        mountedIds.value = new Set([...mountedIds.value, id]);
        sessionStorage.setItem(storageKey, id);
    }
    function start() {
        const processId = newTerminalId();
        open.value = [...open.value, { processId, label: `Shell ${open.value.length + 1}`, isNew: true }];
        select(processId);
    }
    async function end(processId: string) {
        closingId.value = "";
        endedIds.value = new Set([...endedIds.value, processId]);
        const index = open.value.findIndex((terminal) => terminal.processId === processId);
        open.value = open.value.filter((terminal) => terminal.processId !== processId);
        if (selectedId.value === processId) select("", open.value[Math.max(0, index - 1)]?.processId ?? "");
        await runAction(() =>
            remove(apiPath`/api/sessions/${sessionId}/processes/${processId}`).catch((error) => {
                if (error.status !== 404) throw error;
            }),
        );
    }
    const newButton = (
        <button type="button" class="plain small" onClick={start}>
            New terminal
        </button>
    );
    if (open.value.length === 0) {
        return (
            <div class="card empty">
                <p>No terminal is open in this session.</p>
                {newButton}
            </div>
        );
    }
    const tabs = open.value.map((terminal) => ({
        id: terminal.processId,
        label: terminal.label,
        onClose: () => {
            if (endedIds.value.has(terminal.processId)) end(terminal.processId);
            else closingId.value = terminal.processId;
        },
    }));
    return (
        <div class="terminals">
            <Tabs
                label="Terminals"
                tabs={tabs}
                selected={selectedId.value}
                onSelect={select}
                trailing={newButton}
                keepMounted
            >
                {open.value
                    .filter((terminal) => mountedIds.value.has(terminal.processId))
                    .map((terminal) => (
                        <TerminalView
                            key={terminal.processId}
                            label={terminal.label}
                            target={{ sessionId, processId: terminal.processId, isNew: terminal.isNew }}
                            isShown={terminal.processId === selectedId.value}
                            onEnd={() => (endedIds.value = new Set([...endedIds.value, terminal.processId]))}
                        />
                    ))}
            </Tabs>
            {closingId.value && (
                <Dialog title="End this terminal?" onClose={() => (closingId.value = "")}>
                    <p>What runs in it ends too, for everybody who looks at it. Leaving the page lets it go on.</p>
                    <div class="row">
                        <button type="button" class="danger" onClick={() => end(closingId.value)}>
                            End it
                        </button>
                        <button type="button" class="plain" onClick={() => (closingId.value = "")}>
                            Cancel
                        </button>
                    </div>
                </Dialog>
            )}
        </div>
    );
}

function labelOf(process: ProcessView, number: number): string {
    if (process.command === SHELL) return `Shell ${number}`;
    const text = escapeText(process.command);
    return text.length > 24 ? `${text.slice(0, 23)}…` : text;
}
