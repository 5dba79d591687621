// Which machine of a cluster something is asked of.

import type { Signal } from "@preact/signals";

import { facts } from "../account";
import { get } from "../api";
import { useLoaded } from "./load";

/** Nothing, where there is one machine only. */
export function WorkerChoice({ label, any, value }: { label: string; any: string; value: Signal<string> }) {
    const workers = useLoaded(
        async (signal) =>
            facts.value!.cluster
                ? (await get<{ workers: { id: string; state: string }[] }>("/api/cluster", {}, signal)).workers
                : [],
        [],
        10_000,
    );
    if (!facts.value!.cluster) return null;
    const names = new Set((workers.value.value ?? []).filter((one) => one.state !== "dead").map((one) => one.id));
    if (value.value) names.add(value.value);
    return (
        <label>
            {label}
            <select value={value.value} onChange={(event) => (value.value = event.currentTarget.value)}>
                <option value="">{any}</option>
                {[...names].sort().map((name) => (
                    <option key={name} value={name}>
                        {name}
                    </option>
                ))}
            </select>
        </label>
    );
}
