// Data of the API in a component: loaded, reloaded, and what to render meanwhile.

import { type Signal, useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useCallback, useEffect, useRef } from "preact/hooks";

import { ApiError } from "../api/client";
import type { StreamEvent } from "../api/event_stream";
import { onServerReturn, subscribe } from "../api/server_events";
import { throttle } from "../lib/throttle";
import { ErrorNote } from "./error_note";
import { errorMessage } from "./notifications";

export interface RequestState<T> {
    data: Signal<T | null>;
    error: Signal<string>;
    /** Loads again. The old data stay until the new ones have arrived. */
    reload: () => Promise<void>;
}

/** Loads when `inputs` change, when the server is back after it was unreachable, and every `intervalMs` while the page
 *  is visible; 0 means no interval. A new load aborts the one before it. */
export function useRequest<T>(
    load: (signal: AbortSignal) => Promise<T>,
    inputs: readonly unknown[],
    intervalMs = 0,
): RequestState<T> {
    const data = useSignal<T | null>(null);
    const error = useSignal("");
    const controller = useRef(new AbortController());
    const reload = useCallback(async () => {
        controller.current.abort();
        controller.current = new AbortController();
        const { signal } = controller.current;
        try {
            const loaded = await load(signal);
            if (signal.aborted) return;
            data.value = loaded;
            error.value = "";
        } catch (failure) {
            // While the server is unreachable, a banner at the top says so, and the data loaded before stay.
            const isUnavailable = failure instanceof ApiError && failure.isUnavailable && data.value !== null;
            if (!signal.aborted && !isUnavailable) error.value = errorMessage(failure);
        }
    }, inputs);
    useEffect(() => {
        reload();
        const timer = intervalMs ? setInterval(() => document.hidden || reload(), intervalMs) : undefined;
        const unsubscribe = onServerReturn(reload);
        return () => {
            controller.current.abort();
            clearInterval(timer);
            unsubscribe();
        };
    }, inputs);
    return { data, error, reload };
}

/** Reloads, at a limited rate, after the events that `isRelevant` accepts and after a gap in the stream of events. */
export function useReloadOnEvents(
    reload: () => Promise<void>,
    isRelevant: (event: StreamEvent) => boolean,
    inputs: readonly unknown[],
): void {
    useEffect(() => {
        const throttled = throttle(reload);
        const unsubscribe = subscribe((event) => {
            if (event.kind === "gap" || isRelevant(event)) throttled.trigger();
        });
        return () => {
            unsubscribe();
            throttled.cancel();
        };
    }, inputs);
}

interface ViewProps<T> {
    request: RequestState<T>;
    children: (data: T) => ComponentChildren;
}

/** Renders the data of a request, or that it is loading, or why it failed. */
export function RequestView<T>({ request: { data, error }, children }: ViewProps<T>) {
    if (data.value === null && !error.value) {
        return (
            <p class="note" aria-busy="true">
                Loading…
            </p>
        );
    }
    return (
        <>
            <ErrorNote text={error.value} />
            {data.value !== null && children(data.value)}
        </>
    );
}
