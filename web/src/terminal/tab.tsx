// The terminals of a session. They go on without this page; coming back finds them, with what was on their screens.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

import { get, path, remove } from "../api";
import type { TabProps } from "../pages/session";
import { Dialog } from "../parts/dialog";
import { Shown, useLoaded } from "../parts/load";
import { attempt } from "../parts/messages";
import { Tabs } from "../parts/tabs";
import { legible } from "../parts/visible";
import type { ProcessInfo } from "../types";
import { TerminalView } from "./view";

interface Open {
    processId: string;
    label: string;
    isNew: boolean;
}

const SHELL = "exec bash -l";

export function Terminals({ session }: TabProps) {
    const found = useLoaded(
        (signal) => get<{ processes: ProcessInfo[] }>(path`/api/sessions/${session.session_id}/processes`, {}, signal),
        [],
        10_000,
    );
    return (
        <Shown of={found}>
            {({ processes }) => <TerminalTabs sessionId={session.session_id} processes={processes} />}
        </Shown>
    );
}

function TerminalTabs({ sessionId, processes }: { sessionId: string; processes: ProcessInfo[] }) {
    const open = useSignal<Open[]>([]);
    const chosen = useSignal("");
    const seen = useSignal<ReadonlySet<string>>(new Set());
    const closing = useSignal("");
    const ended = useSignal<ReadonlySet<string>>(new Set());

    useEffect(() => {
        const running = processes.filter((one) => one.terminal && one.running && !ended.value.has(one.process_id));
        running.sort((one, other) => other.started_s_ago - one.started_s_ago);
        const more = running.filter((one) => !open.value.some((tab) => tab.processId === one.process_id));
        if (more.length)
            open.value = [
                ...open.value,
                ...more.map((one, at) => ({
                    processId: one.process_id,
                    label: labelOf(one, open.value.length + at + 1),
                    isNew: false,
                })),
            ];
        if (!chosen.value && open.value[0]) choose(sessionStorage.getItem(remembered) ?? "", open.value[0].processId);
    }, [processes]);

    const remembered = `warren.terminal.${sessionId}`;
    function choose(processId: string, otherwise = "") {
        const id = open.value.some((one) => one.processId === processId) ? processId : otherwise;
        chosen.value = id;
        seen.value = new Set([...seen.value, id]);
        sessionStorage.setItem(remembered, id);
    }
    function start() {
        const processId = `terminal-${crypto.getRandomValues(new Uint32Array(2)).join("")}`;
        open.value = [...open.value, { processId, label: `Shell ${open.value.length + 1}`, isNew: true }];
        choose(processId);
    }
    async function end(processId: string) {
        closing.value = "";
        ended.value = new Set([...ended.value, processId]);
        const at = open.value.findIndex((one) => one.processId === processId);
        open.value = open.value.filter((one) => one.processId !== processId);
        if (chosen.value === processId) choose("", open.value[Math.max(0, at - 1)]?.processId ?? "");
        await attempt(() =>
            remove(path`/api/sessions/${sessionId}/processes/${processId}`).catch((error) => {
                if (error.status !== 404) throw error;
            }),
        );
    }
    const starter = (
        <button type="button" class="plain small" onClick={start}>
            New terminal
        </button>
    );
    if (open.value.length === 0) {
        return (
            <div class="card empty">
                <p>No terminal is open in this session.</p>
                {starter}
            </div>
        );
    }
    const tabs = open.value.map((one) => ({
        id: one.processId,
        label: one.label,
        onClose: () => (ended.value.has(one.processId) ? end(one.processId) : (closing.value = one.processId)),
    }));
    return (
        <div class="terminals">
            <Tabs label="Terminals" tabs={tabs} chosen={chosen.value} onChoose={choose} after={starter} keep>
                {open.value
                    .filter((one) => seen.value.has(one.processId))
                    .map((one) => (
                        <TerminalView
                            key={one.processId}
                            label={one.label}
                            place={{ sessionId, processId: one.processId, isNew: one.isNew }}
                            isShown={one.processId === chosen.value}
                            onEnd={() => (ended.value = new Set([...ended.value, one.processId]))}
                        />
                    ))}
            </Tabs>
            {closing.value && (
                <Dialog title="End this terminal?" onClose={() => (closing.value = "")}>
                    <p>What runs in it ends too, for everybody who looks at it. Leaving the page lets it go on.</p>
                    <div class="row">
                        <button type="button" class="danger" onClick={() => end(closing.value)}>
                            End it
                        </button>
                        <button type="button" class="plain" onClick={() => (closing.value = "")}>
                            Cancel
                        </button>
                    </div>
                </Dialog>
            )}
        </div>
    );
}

function labelOf(process: ProcessInfo, number: number): string {
    if (process.command === SHELL) return `Shell ${number}`;
    const text = legible(process.command);
    return text.length > 24 ? `${text.slice(0, 23)}…` : text;
}
