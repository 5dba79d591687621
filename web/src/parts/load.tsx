// Data of the API in a component: loaded, loaded again, and what to show meanwhile.

import { useSignal, type Signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useCallback, useEffect } from "preact/hooks";

import { describe } from "./messages";

export interface Loaded<T> {
    value: Signal<T | null>;
    error: Signal<string>;
    /** Loads again; what is shown stays until the new is there. */
    again: () => Promise<void>;
}

/** `everyMs` loads again and again while the page is visible; 0 only when asked. */
export function useLoaded<T>(load: (signal: AbortSignal) => Promise<T>, inputs: readonly unknown[], everyMs = 0): Loaded<T> {
    const value = useSignal<T | null>(null);
    const error = useSignal("");
    const again = useCallback(async () => {
        try {
            value.value = await load(new AbortController().signal);
            error.value = "";
        } catch (failure) {
            error.value = describe(failure);
        }
    }, inputs);
    useEffect(() => {
        const stop = new AbortController();
        let timer = 0;
        async function turn() {
            try {
                if (!document.hidden || value.value === null) {
                    const found = await load(stop.signal);
                    if (stop.signal.aborted) return;
                    value.value = found;
                    error.value = "";
                }
            } catch (failure) {
                if (stop.signal.aborted) return;
                error.value = describe(failure);
            }
            if (everyMs) timer = setTimeout(turn, everyMs);
        }
        turn();
        return () => {
            stop.abort();
            clearTimeout(timer);
        };
    }, inputs);
    return { value, error, again };
}

export function Shown<T>({ of, children }: { of: Loaded<T>; children: (value: T) => ComponentChildren }) {
    if (of.value.value !== null) {
        return (
            <>
                {of.error.value && <p class="note error" role="alert">{of.error.value}</p>}
                {children(of.value.value)}
            </>
        );
    }
    if (of.error.value) return <p class="note error" role="alert">{of.error.value}</p>;
    return <p class="note" aria-busy="true">Loading…</p>;
}
