// Turns what was typed into the form of a new session into the body of the request.

import type { NetworkBody, SessionBody } from "../api/schemas";
import { splitLines } from "../lib/format";

export const NETWORK_CHOICES = [
    ["environment", "As the environment says"],
    ["nothing", "Nothing"],
    ["some", "Only what is named here"],
    ["internet", "The internet"],
] as const;
export type NetworkChoice = (typeof NETWORK_CHOICES)[number][0];

/** The texts of the form's fields. An empty one leaves the choice to the environment. */
export interface SessionForm {
    thread: string;
    image: string;
    memoryMb: string;
    cpus: string;
    diskMb: string;
    processes: string;
    idleMinutes: string;
    lifetimeMinutes: string;
    metadata: string;
    rules: string;
}

/** Throws an Error for users if a line of the metadata is not name=value. */
export function sessionBody(environment: string | undefined, form: SessionForm, network: NetworkChoice): SessionBody {
    const limits = {
        memory_mb: toNumber(form.memoryMb),
        cpus: toNumber(form.cpus),
        disk_mb: toNumber(form.diskMb),
        pids: toNumber(form.processes),
    };
    return {
        environment,
        thread_id: form.thread.trim(),
        image: form.image.trim(),
        limits: Object.values(limits).some((limit) => limit !== undefined) ? limits : undefined,
        idle_timeout_s: toNumber(form.idleMinutes, 60),
        max_lifetime_s: toNumber(form.lifetimeMinutes, 60),
        network: networkRules(network, splitLines(form.rules)),
        metadata: Object.fromEntries(splitLines(form.metadata).map(parsePair)),
    };
}

const toNumber = (text: string, factor = 1): number | undefined => (text ? Number(text) * factor : undefined);

function networkRules(choice: NetworkChoice, rules: string[]): NetworkBody | undefined {
    if (choice === "environment") return undefined;
    if (choice === "internet") return { internet: true, deny: rules };
    return { internet: false, allow: choice === "some" ? rules : [] };
}

function parsePair(line: string): [string, string] {
    const separator = line.indexOf("=");
    if (separator < 1) throw new Error(`Metadata must be name=value, not “${line}”`);
    return [line.slice(0, separator).trim(), line.slice(separator + 1).trim()];
}
