// Data of the API in a component: loaded, loaded again, and what to show meanwhile.

import { type Signal, useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useCallback, useEffect, useRef } from "preact/hooks";

import { ApiError } from "../api";
import { connected } from "../live";
import { describe } from "./messages";

export interface Loaded<T> {
    value: Signal<T | null>;
    error: Signal<string>;
    /** Loads again; what is shown stays until the new is there. */
    again: () => Promise<void>;
}

/** Loads when `inputs` change, when the server is back after it was away, and every `everyMs` while the page is
 *  visible; 0: only then. What comes from an earlier load than the one that is shown is dropped. */
export function useLoaded<T>(
    load: (signal: AbortSignal) => Promise<T>,
    inputs: readonly unknown[],
    everyMs = 0,
): Loaded<T> {
    const value = useSignal<T | null>(null);
    const error = useSignal("");
    const running = useRef(new AbortController());
    const again = useCallback(async () => {
        running.current.abort();
        const { signal } = (running.current = new AbortController());
        try {
            const found = await load(signal);
            if (signal.aborted) return;
            value.value = found;
            error.value = "";
        } catch (failure) {
            // While the server is away, the page says so at its top, and what was loaded before stays.
            const isAway = failure instanceof ApiError && failure.isAway && value.value !== null;
            if (!signal.aborted && !isAway) error.value = describe(failure);
        }
    }, inputs);
    useEffect(() => {
        again();
        const timer = everyMs ? setInterval(() => document.hidden || again(), everyMs) : 0;
        let wasConnected = connected.value;
        const stopWatching = connected.subscribe((isConnected) => {
            if (isConnected && !wasConnected) again();
            wasConnected = isConnected;
        });
        return () => {
            running.current.abort();
            clearInterval(timer);
            stopWatching();
        };
    }, inputs);
    return { value, error, again };
}

export function Shown<T>({ of, children }: { of: Loaded<T>; children: (value: T) => ComponentChildren }) {
    if (of.value.value !== null) {
        return (
            <>
                {of.error.value && (
                    <p class="note error" role="alert">
                        {of.error.value}
                    </p>
                )}
                {children(of.value.value)}
            </>
        );
    }
    if (of.error.value)
        return (
            <p class="note error" role="alert">
                {of.error.value}
            </p>
        );
    return (
        <p class="note" aria-busy="true">
            Loading…
        </p>
    );
}
