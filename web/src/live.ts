// What happens on the server, as it happens. The stream comes back by itself after the server was away.

import { signal } from "@preact/signals";

import { ApiError, events, type StreamEvent } from "./api";

type Listener = (event: StreamEvent) => void;

/** Whether the server answers. */
export const connected = signal(true);

const listeners = new Set<Listener>();
let running: AbortController | null = null;
let lastId = "";

/** Calls back for every event of the caller's tenant, and with the kind `gap` when some may have been missed. */
export function listen(listener: Listener): () => void {
    listeners.add(listener);
    if (!running) run(running = new AbortController());
    return () => {
        listeners.delete(listener);
        if (listeners.size === 0) {
            running?.abort();
            running = null;
        }
    };
}

async function run(stop: AbortController): Promise<void> {
    let waitMs = 500;
    while (!stop.signal.aborted) {
        try {
            for await (const event of events("GET", "/api/events", { query: { after: lastId }, signal: stop.signal })) {
                if (!connected.value) {
                    connected.value = true;
                    tell({ id: "", kind: "gap", data: {} });
                }
                waitMs = 500;
                if (event.id) lastId = event.id;
                tell(event);
            }
        } catch (error) {
            if (stop.signal.aborted) return;
            if (error instanceof ApiError && error.status === 401) return;
            if (!(error instanceof ApiError) || error.isAway) connected.value = false;
        }
        await new Promise((resolve) => setTimeout(resolve, waitMs * (0.5 + Math.random())));
        waitMs = Math.min(waitMs * 2, 5000);
    }
}

function tell(event: StreamEvent): void {
    for (const listener of [...listeners]) listener(event);
}
