// Entries of a session's log as text.

import type { LogEntryView } from "../api/schemas";
import { escapeLines, escapeText, stripEscapeSequences } from "../lib/escape";
import { formatMilliseconds } from "../lib/format";

export const LOG_KINDS = [
    ["", "Everything"],
    ["command,cell,terminal,note", "What ran, without output"],
    ["command", "Commands"],
    ["cell", "Cells"],
    ["terminal", "Terminals"],
    ["output", "Output"],
    ["note", "Notes"],
] as const;

/** What happened, in one line or, if the command or the cell has several, in several. Nothing from a sandbox hides or
 *  reorders other text in it. */
export function describeEntry(entry: LogEntryView): string {
    if (entry.kind === "output" || entry.kind === "note") return escapeLines(stripEscapeSequences(entry.text ?? ""));
    const name = [entry.command_id, entry.event].filter(Boolean).join(" ");
    if (entry.event === "ended" || entry.event === "failed" || entry.event === "closed")
        return escapeText(`${name}${describeEnd(entry)}`);
    return entry.command ? `${escapeText(name)}: ${escapeLines(entry.command)}` : escapeText(name);
}

function describeEnd({ exit_code, reason, duration_ms, error, detail }: LogEntryView): string {
    const code = typeof exit_code === "number" ? ` with ${exit_code}` : "";
    const why = reason && reason !== "exited" ? ` (${reason})` : "";
    const took = typeof duration_ms === "number" ? ` after ${formatMilliseconds(duration_ms)}` : "";
    return code + why + took + [error, detail].map((text) => (text ? `, ${text}` : "")).join("");
}

const MARKS: Record<string, string> = { stderr: "!", result: "=" };

/** The entry as `warren logs` prints it: when and what, and below that what was written. */
export function printEntry(entry: LogEntryView): string {
    const lines = describeEntry(entry).replace(/\n$/, "").split("\n");
    if (entry.kind === "output") {
        const mark = MARKS[entry.stream ?? ""] ?? "|";
        const missing = entry.missing ? [`  … ${entry.missing} bytes were not kept`] : [];
        return [...missing, ...lines.map((line) => `  ${mark} ${line}`), ""].join("\n");
    }
    const [first, ...rest] = lines;
    const what = `${entry.at.slice(0, 19).replace("T", " ")} ${entry.kind} ${first}`;
    return [what, ...rest.map((line) => `  > ${line}`), ""].join("\n");
}

export function matches(entry: LogEntryView, search: string): boolean {
    return describeEntry(entry).toLowerCase().includes(search.trim().toLowerCase());
}

/** Adds entries to those there are. What came twice stays once, in the order of the log. */
export function mergeEntries(known: readonly LogEntryView[], added: readonly LogEntryView[]): LogEntryView[] {
    const all = new Map([...known, ...added].map((entry) => [entry.id, entry]));
    return [...all.values()].sort((one, other) => one.id - other.id);
}
