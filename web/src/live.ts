// What happens on the server, as it happens. The stream comes back by itself after the server was away. A page that
// nobody sees keeps none open: a browser has only six connections to a server, and others of its pages need them.

import { signal } from "@preact/signals";

import { ApiError, events, type StreamEvent } from "./api";
import { loadFacts } from "./signing";

type Listener = (event: StreamEvent) => void;

/** Whether the server answers. */
export const connected = signal(true);

const SILENT_MS = 50_000; // the server sends a sign of life every 15 s
const listeners = new Set<Listener>();
let stopStream: AbortController | null = null;
let lastId = "";

/** Calls back for every event of the caller's tenant, and with the kind `gap` when some may have been missed: after
 *  that everything must be looked at again. */
export function listen(listener: Listener): () => void {
    listeners.add(listener);
    start();
    return () => {
        listeners.delete(listener);
        if (listeners.size === 0) stop();
    };
}

document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));

function start(): void {
    if (!stopStream && listeners.size > 0 && !document.hidden) run((stopStream = new AbortController()).signal);
}

function stop(): void {
    stopStream?.abort();
    stopStream = null;
}

async function run(stopped: AbortSignal): Promise<void> {
    let waitMs = 500;
    while (!stopped.aborted) {
        try {
            for await (const event of events("GET", "/api/events", { lastId, signal: stopped, silentMs: SILENT_MS })) {
                if (event.id) lastId = event.id;
                waitMs = 500;
                if (event.kind === "ready") begin(event.data.resumed);
                else if (event.kind === "error" && event.data.status === 401)
                    return await loadFacts(); // the sign-in has ended
                else tell(event);
            }
        } catch (error) {
            if (stopped.aborted) return;
            if (error instanceof ApiError && error.status === 401) return;
            if (!(error instanceof ApiError) || error.isAway) connected.value = false;
        }
        await new Promise((resolve) => setTimeout(resolve, waitMs * (0.5 + Math.random())));
        waitMs = Math.min(waitMs * 2, 2500);
    }
}

function begin(resumed: boolean): void {
    const wasAway = !connected.value;
    connected.value = true;
    if (wasAway || !resumed) tell({ id: "", kind: "gap", data: {} });
}

function tell(event: StreamEvent): void {
    for (const listener of [...listeners]) listener(event);
}
