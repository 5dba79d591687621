// Connections that the network's rules refused.

import type { RefusalView } from "../api/schemas";

export interface RefusalGroup extends RefusalView {
    key: string;
    count: number;
}

export function destinationOf({ name, address, port }: RefusalView): string {
    return (name || address) + (port ? `:${port}` : "");
}

/** Groups refusals of the same destination, newest first, and adds up their counts. */
export function groupRefusals(refusals: readonly RefusalView[]): RefusalGroup[] {
    const groups = new Map<string, RefusalGroup>();
    for (const refusal of refusals) {
        const key = JSON.stringify([destinationOf(refusal), refusal.reason, refusal.rule]);
        const count = (groups.get(key)?.count ?? 0) + (refusal.count ?? 1);
        groups.delete(key); // so that it is inserted at the end, as the newest
        groups.set(key, { ...refusal, key, count });
    }
    return [...groups.values()].reverse();
}
