// Turns what was typed into the form of a new session into the body of the request.

import type { CreateBody, NetworkBody, VolumeBody } from "../api/schemas";
import { splitLines } from "../lib/format";

export const NETWORK_CHOICES = [
    ["environment", "As the environment says"],
    ["nothing", "Nothing"],
    ["some", "Only what is named here"],
    ["internet", "The internet"],
] as const;
export const ON_IDLE_CHOICES = [
    ["", "As the environment says"],
    ["end", "It ends"],
    ["pause", "It is paused"],
    ["hibernate", "It is hibernated"],
] as const;
export const LOG_CHOICES = [
    ["", "As the server says"],
    ["off", "None"],
    ["commands", "What ran, and how it ended"],
    ["output", "That, and what it wrote"],
] as const;
export const MISMATCH_CHOICES = [
    ["", "Refuse"],
    ["keep", "Use that one"],
    ["replace", "End it, and make a new one"],
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
    onIdle: string;
    pausedHours: string;
    snapshot: string;
    volumes: string;
    logs: string;
    onMismatch: string;
    metadata: string;
    rules: string;
}

/** Throws an Error for users if a line of the metadata is not name=value, or one of the volumes not name:path. */
export function sessionBody(environment: string | undefined, form: SessionForm, network: NetworkChoice): CreateBody {
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
        on_idle: (form.onIdle || undefined) as CreateBody["on_idle"],
        max_paused_s: toNumber(form.pausedHours, 3600),
        snapshot: form.snapshot.trim() || undefined,
        volumes: form.volumes.trim() ? splitLines(form.volumes).map(parseMount) : undefined,
        logs: form.logs || undefined,
        on_mismatch: ((form.thread.trim() && form.onMismatch) || undefined) as CreateBody["on_mismatch"],
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

function parseMount(line: string): VolumeBody {
    const [name = "", path = "", mode = "rw", ...rest] = line.split(":");
    if (!name || !path || rest.length || (mode !== "rw" && mode !== "ro"))
        throw new Error(`A volume must be name:path or name:path:ro, not “${line}”`);
    return { name, path, read_only: mode === "ro" };
}

function parsePair(line: string): [string, string] {
    const separator = line.indexOf("=");
    if (separator < 1) throw new Error(`Metadata must be name=value, not “${line}”`);
    return [line.slice(0, separator).trim(), line.slice(separator + 1).trim()];
}
