// The server's clock. Times of the API are the server's, and the browser's clock may be wrong.

import { signal } from "@preact/signals";

const MAX_IGNORED_MS = 3000; // the Date header has whole seconds, and the answer took some time to arrive

let offsetMs = 0; // how far the server's clock is ahead of the browser's

/** The server's time in milliseconds. A component that reads it renders every second. */
export const now = signal(Date.now());

setInterval(() => {
    if (!document.hidden) now.value = Date.now() + offsetMs;
}, 1000);

/** Adjusts the clock to the Date header of an answer. */
export function setServerTime(date: string | null): void {
    const difference = Date.parse(date ?? "") - Date.now();
    if (!Number.isNaN(difference)) offsetMs = Math.abs(difference) > MAX_IGNORED_MS ? difference : 0;
}
