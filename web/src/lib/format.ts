// Formats numbers and times for people.

import { now } from "./clock";
import { escapeText } from "./escape";

export const MIB = 1024 * 1024;

export function formatBytes(value: number): string {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (value >= 1024 && unit < units.length - 1) {
        value /= 1024;
        unit += 1;
    }
    return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

export function formatDuration(seconds: number): string {
    if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
    if (seconds < 86400) return inTwoUnits(Math.floor(seconds / 60), 60, "h", "min");
    return inTwoUnits(Math.floor(seconds / 3600), 24, "d", "h");
}

function inTwoUnits(count: number, perLarge: number, large: string, small: string): string {
    const rest = count % perLarge;
    return `${Math.floor(count / perLarge)} ${large}${rest ? ` ${rest} ${small}` : ""}`;
}

export function formatMilliseconds(ms: number): string {
    return ms < 1000 ? `${ms.toFixed(1)} ms` : `${(ms / 1000).toFixed(2)} s`;
}

/** A duration as a countdown shows it: 4:05, or 2 h from an hour on. */
export function formatCountdown(seconds: number): string {
    if (seconds >= 3600) return formatDuration(seconds);
    return `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
}

/** Returns the seconds from now until a time, negative if it has passed. The component that asks renders every second. */
export function secondsUntil(time: string): number {
    return (Date.parse(time) - now.value) / 1000;
}

export const percent = (part: number, whole: number): number => (whole > 0 ? Math.min(100, (100 * part) / whole) : 0);

export const formatTime = (time: string): string => new Date(time).toLocaleTimeString();

export const formatDateTime = (time: string): string => new Date(time).toLocaleString();

export function truncate(text: string, maxLength: number): string {
    return text.length > maxLength ? `${text.slice(0, maxLength - 1)}…` : text;
}

/** Splits a text into its lines, trimmed and without the empty ones. */
export function splitLines(text: string): string[] {
    return text
        .split("\n")
        .map((line) => line.trim())
        .filter(Boolean);
}

/** Values with their names: "sessions 5, gpus 1". */
export function formatValues(values: Record<string, unknown>): string {
    return Object.entries(values)
        .map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : String(value)}`)
        .join(", ");
}

/** Details of an event for people, without those that are empty: "port 81, reason no rule allows it". */
export function formatDetails(details: Record<string, unknown>): string {
    const known = Object.entries(details)
        .filter(([, value]) => value !== null && value !== "" && value !== undefined)
        .map(([name, value]) => [name.replaceAll("_", " "), value]);
    return escapeText(formatValues(Object.fromEntries(known)));
}

/** Says how a process ended: "It ended with 1." */
export function describeExit({ reason, exit_code }: { reason?: unknown; exit_code?: unknown }): string {
    return reason === "exited" ? `It ended with ${exit_code}.` : `It ended: ${reason}.`;
}
