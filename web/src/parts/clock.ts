// The time, as the server has it: the browser's clock may be wrong, and times of the API are the server's.

import { signal } from "@preact/signals";

let aheadMs = 0; // how much the server's clock is ahead of the browser's

/** The server's time in milliseconds; what reads it is shown anew every second. */
export const now = signal(Date.now());

setInterval(() => {
    if (!document.hidden) now.value = Date.now() + aheadMs;
}, 1000);

/** Takes note of the time that an answer brings. It has no fractions of a second, so small differences mean nothing. */
export function serverTime(date: string | null): void {
    const difference = Date.parse(date ?? "") - Date.now();
    if (!Number.isNaN(difference)) aheadMs = Math.abs(difference) > 3000 ? difference : 0;
}
