// A new session from an environment.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { useLocation } from "preact-iso/router";

import { call, get } from "../api";
import { Dialog } from "../parts/dialog";
import { LinesField, linesOf, Minutes, NumberField, TextField } from "../parts/fields";
import { useLoaded } from "../parts/load";
import { describe, tell } from "../parts/messages";
import { bytes } from "../parts/units";
import type { Environment, Session } from "../types";

const REACH = [
    ["environment", "As the environment says"],
    ["nothing", "Nothing"],
    ["some", "Only what is named here"],
    ["internet", "The internet"],
] as const;
type Reach = (typeof REACH)[number][0];

export function CreateSession({
    environments,
    onClose,
}: {
    environments: readonly Environment[];
    onClose: () => void;
}) {
    const { route } = useLocation();
    const images = useLoaded((signal) => get<{ images: { name: string }[] }>("/api/images", {}, signal), []);
    const environment = useSignal(""); // the default one, until another is chosen
    const chosen =
        environments.find((one) => (environment.value ? one.name === environment.value : one.default)) ??
        environments[0];
    const texts = {
        thread: useSignal(""),
        image: useSignal(""),
        memory: useSignal(""),
        cpus: useSignal(""),
        disk: useSignal(""),
        processes: useSignal(""),
        idle: useSignal(""),
        longest: useSignal(""),
        metadata: useSignal(""),
        rules: useSignal(""),
    };
    const reach = useSignal<Reach>("environment");
    const error = useSignal("");
    const busy = useSignal(false);
    const stop = useRef(new AbortController());
    useEffect(() => () => stop.current.abort(), []); // closing the dialog gives up

    async function submit(event: Event) {
        event.preventDefault();
        busy.value = true;
        try {
            const made = await call<Session & { created: boolean }>("POST", "/api/sessions", {
                body: body(),
                signal: stop.current.signal,
            });
            if (!made.created) tell("The thread had a session already: this is it.");
            onClose();
            route(`/ui/sessions/${encodeURIComponent(made.session_id)}`);
        } catch (failure) {
            if (!stop.current.signal.aborted) error.value = describe(failure);
        }
        busy.value = false;
    }

    function body() {
        const number = (text: string, factor = 1) => (text ? Number(text) * factor : undefined);
        const limits = {
            memory_mb: number(texts.memory.value),
            cpus: number(texts.cpus.value),
            disk_mb: number(texts.disk.value),
            pids: number(texts.processes.value),
        };
        return {
            environment: chosen?.name,
            thread_id: texts.thread.value.trim(),
            image: texts.image.value.trim(),
            limits: Object.values(limits).some((limit) => limit !== undefined) ? limits : undefined,
            idle_timeout_s: number(texts.idle.value, 60),
            max_lifetime_s: number(texts.longest.value, 60),
            network: rules(reach.value, linesOf(texts.rules.value)),
            metadata: Object.fromEntries(linesOf(texts.metadata.value).map(readPair)),
        };
    }

    return (
        <Dialog title="New session" onClose={onClose}>
            <form onSubmit={submit}>
                <div class="field">
                    <label>
                        Environment
                        <select
                            value={chosen?.name}
                            onChange={(event) => (environment.value = event.currentTarget.value)}
                            aria-describedby="environment-hint"
                        >
                            {environments.map((one) => (
                                <option key={one.name} value={one.name}>
                                    {one.name}
                                    {one.default ? " (default)" : ""}
                                </option>
                            ))}
                        </select>
                    </label>
                    <small id="environment-hint">{chosen && describeEnvironment(chosen)}</small>
                </div>
                <TextField
                    label="Thread"
                    value={texts.thread}
                    maxLength={255}
                    hint="A conversation of yours. It has one session at a time: if there is one, you get that."
                />
                <details>
                    <summary>Image and limits</summary>
                    <div class="fields">
                        <TextField label="Image" value={texts.image} list="images" placeholder={chosen?.image} />
                        <NumberField
                            label="Memory (MiB)"
                            step="1"
                            value={texts.memory}
                            placeholder={String(chosen?.limits.memory_mb ?? "")}
                        />
                        <NumberField label="CPUs" value={texts.cpus} placeholder={String(chosen?.limits.cpus ?? "")} />
                        <NumberField
                            label="Disk (MiB)"
                            step="1"
                            value={texts.disk}
                            placeholder={String(chosen?.limits.disk_mb ?? "")}
                        />
                        <NumberField
                            label="Processes"
                            step="1"
                            value={texts.processes}
                            placeholder={String(chosen?.limits.pids ?? "")}
                        />
                    </div>
                    <datalist id="images">
                        {images.value.value?.images.map((image) => (
                            <option key={image.name} value={image.name} />
                        ))}
                    </datalist>
                    <p class="note">
                        With an image or limits of its own it is made anew, instead of coming from the warm pool.
                    </p>
                </details>
                <details>
                    <summary>Time-outs</summary>
                    <div class="fields">
                        <Minutes
                            label="Ends when it was not used for"
                            value={texts.idle}
                            placeholder={minutes(chosen?.idle_timeout_s)}
                        />
                        <Minutes
                            label="Ends in any case after"
                            value={texts.longest}
                            placeholder={minutes(chosen?.max_lifetime_s)}
                        />
                    </div>
                </details>
                <details>
                    <summary>Network</summary>
                    <fieldset>
                        <legend>It may reach</legend>
                        {REACH.map(([value, label]) => (
                            <label key={value} class="inline">
                                <input
                                    type="radio"
                                    name="reach"
                                    checked={reach.value === value}
                                    onChange={() => (reach.value = value)}
                                />
                                {label}
                            </label>
                        ))}
                    </fieldset>
                    {reach.value === "some" && (
                        <LinesField
                            label="Allowed, one on each line"
                            value={texts.rules}
                            placeholder={"api.example.com\n*.example.org:443"}
                        />
                    )}
                    {reach.value === "internet" && (
                        <LinesField label="Refused all the same, one on each line" value={texts.rules} />
                    )}
                </details>
                <details>
                    <summary>Metadata</summary>
                    <LinesField
                        label="Notes of your own, one on each line"
                        value={texts.metadata}
                        placeholder="user=u-7"
                    />
                </details>
                {error.value && (
                    <p class="note error" role="alert">
                        {error.value}
                    </p>
                )}
                <div class="buttons">
                    <button type="button" class="plain" onClick={onClose}>
                        Cancel
                    </button>
                    <button type="submit" disabled={busy.value}>
                        {busy.value ? "Creating…" : "Create"}
                    </button>
                </div>
            </form>
        </Dialog>
    );
}

function rules(reach: Reach, named: string[]) {
    if (reach === "environment") return undefined;
    if (reach === "internet") return { internet: true, deny: named };
    return { internet: false, allow: reach === "some" ? named : [] };
}

function readPair(line: string): [string, string] {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`Metadata must be name=value, not “${line}”`);
    return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
}

const minutes = (seconds: number | null | undefined): string =>
    seconds ? String(Math.round(seconds / 60)) : "As the server says";

function describeEnvironment({ description, image, limits, network }: Environment): string {
    const size = `${limits.cpus} CPU, ${bytes(limits.memory_mb * 2 ** 20)} memory, ${bytes(limits.disk_mb * 2 ** 20)} disk`;
    const reach = network.internet ? "internet" : network.allow.length ? "some of the network" : "no network";
    return [description.replace(/\.$/, ""), `Image ${image}, ${size}, ${reach}`].filter(Boolean).join(". ");
}
