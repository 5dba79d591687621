// The stream of the server's events, shared by all components of a page. It reconnects by itself after the server was
// unreachable. A hidden page keeps no stream open: a browser allows six connections to a server, and the visible pages
// need them.

import { signal } from "@preact/signals";

import { loadServerInfo } from "../auth/sign_in";
import { ApiError } from "./client";
import { type StreamEvent, streamEvents } from "./event_stream";

type Listener = (event: StreamEvent) => void;

export const serverReachable = signal(true);

const IDLE_TIMEOUT_MS = 50_000; // the server sends a comment every 15 s
const FIRST_RETRY_MS = 500;
const MAX_RETRY_MS = 2500;
const listeners = new Set<Listener>();
let controller: AbortController | null = null;
let lastEventId = "";

/** Calls `listener` for every event of the caller's tenant, and with the kind `gap` if some may have been missed: then
 *  everything must be loaded again. Returns a function that ends the subscription. */
export function subscribe(listener: Listener): () => void {
    listeners.add(listener);
    start();
    return () => {
        listeners.delete(listener);
        if (listeners.size === 0) stop();
    };
}

/** Calls `listener` each time that the server answers again after it was unreachable. Returns a function that ends it. */
export function onServerReturn(listener: () => void): () => void {
    let wasReachable = serverReachable.peek();
    return serverReachable.subscribe((isReachable) => {
        if (isReachable && !wasReachable) listener();
        wasReachable = isReachable;
    });
}

document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));

function start(): void {
    if (controller || listeners.size === 0 || document.hidden) return;
    controller = new AbortController();
    run(controller.signal);
}

function stop(): void {
    controller?.abort();
    controller = null;
}

async function run(stopped: AbortSignal): Promise<void> {
    let retryMs = FIRST_RETRY_MS;
    while (!stopped.aborted) {
        try {
            const options = { lastEventId, signal: stopped, idleTimeoutMs: IDLE_TIMEOUT_MS };
            for await (const event of streamEvents("GET", "/api/events", options)) {
                if (event.id) lastEventId = event.id;
                retryMs = FIRST_RETRY_MS;
                if (event.kind === "ready") handleConnected(event.data.resumed === true);
                else if (event.kind === "error" && event.data.status === 401) return await loadServerInfo();
                else dispatch(event);
            }
        } catch (error) {
            if (stopped.aborted) return;
            if (error instanceof ApiError && error.status === 401) return;
            if (!(error instanceof ApiError) || error.isUnavailable) serverReachable.value = false;
        }
        await new Promise((resolve) => setTimeout(resolve, retryMs * (0.5 + Math.random())));
        retryMs = Math.min(retryMs * 2, MAX_RETRY_MS);
    }
}

function handleConnected(resumed: boolean): void {
    const wasUnreachable = !serverReachable.value;
    serverReachable.value = true;
    if (wasUnreachable || !resumed) dispatch({ id: "", kind: "gap", data: {} });
}

function dispatch(event: StreamEvent): void {
    for (const listener of [...listeners]) listener(event);
}
