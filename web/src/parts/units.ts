// Numbers and times as people read them.

import { now } from "./clock";

export function bytes(value: number): string {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let at = 0;
    while (value >= 1024 && at < units.length - 1) {
        value /= 1024;
        at += 1;
    }
    return `${at === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[at]}`;
}

export function duration(seconds: number): string {
    if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
    if (seconds < 86400) return inTwo(Math.floor(seconds / 60), 60, "h", "min");
    return inTwo(Math.floor(seconds / 3600), 24, "d", "h");
}

function inTwo(count: number, size: number, large: string, small: string): string {
    const rest = count % size;
    return `${Math.floor(count / size)} ${large}${rest ? ` ${rest} ${small}` : ""}`;
}

/** Seconds from now until a time; negative if it has passed. What shows it is shown anew every second. */
export function secondsUntil(time: string): number {
    return (Date.parse(time) - now.value) / 1000;
}

export const percent = (part: number, whole: number): number => (whole > 0 ? Math.min(100, (100 * part) / whole) : 0);

export const shortTime = (time: string): string => new Date(time).toLocaleTimeString();

export const fullTime = (time: string): string => new Date(time).toLocaleString();
