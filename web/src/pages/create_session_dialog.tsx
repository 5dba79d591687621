// The dialog that creates a session from an environment.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { useLocation } from "preact-iso/router";

import { get, requestJson } from "../api/client";
import type { EnvironmentView, ImageList, SessionView } from "../api/schemas";
import { MinutesField, NumberField, TextAreaField, TextField } from "../components/fields";
import { FormDialog } from "../components/form_dialog";
import { notify } from "../components/notifications";
import { useRequest } from "../components/request";
import { formatBytes, MIB } from "../lib/format";
import { NETWORK_CHOICES, type NetworkChoice, sessionBody } from "./new_session";

export function CreateSessionDialog({
    environments,
    onClose,
}: {
    environments: readonly EnvironmentView[];
    onClose: () => void;
}) {
    const { route } = useLocation();
    const images = useRequest((signal) => get<ImageList>("/api/images", {}, signal), []);
    const selected = useSignal(""); // empty: the default environment
    const environment =
        environments.find((one) => (selected.value ? one.name === selected.value : one.default)) ?? environments[0];
    const form = {
        thread: useSignal(""),
        image: useSignal(""),
        memoryMb: useSignal(""),
        cpus: useSignal(""),
        diskMb: useSignal(""),
        processes: useSignal(""),
        idleMinutes: useSignal(""),
        lifetimeMinutes: useSignal(""),
        metadata: useSignal(""),
        rules: useSignal(""),
    };
    const network = useSignal<NetworkChoice>("environment");
    const controller = useRef(new AbortController());
    useEffect(() => () => controller.current.abort(), []); // closing the dialog cancels the request

    async function submit() {
        const texts = Object.fromEntries(Object.entries(form).map(([name, field]) => [name, field.value]));
        const session = await requestJson<SessionView>("POST", "/api/sessions", {
            body: sessionBody(environment?.name, texts as Record<keyof typeof form, string>, network.value),
            signal: controller.current.signal,
        });
        if (!session.created) notify("The thread had a session already: this is it.");
        route(`/ui/sessions/${encodeURIComponent(session.session_id)}`);
    }

    return (
        <FormDialog title="New session" submitLabel="Create" busyLabel="Creating…" onSubmit={submit} onClose={onClose}>
            <div class="field">
                <label>
                    Environment
                    <select
                        value={environment?.name}
                        onChange={(event) => (selected.value = event.currentTarget.value)}
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
                <small id="environment-hint">{environment && describeEnvironment(environment)}</small>
            </div>
            <TextField
                label="Thread"
                value={form.thread}
                maxLength={255}
                hint="A conversation of yours. It has one session at a time: if there is one, you get that."
            />
            <details>
                <summary>Image and limits</summary>
                <div class="fields">
                    <TextField label="Image" value={form.image} list="images" placeholder={environment?.image} />
                    <NumberField
                        label="Memory (MiB)"
                        step="1"
                        value={form.memoryMb}
                        placeholder={String(environment?.limits.memory_mb ?? "")}
                    />
                    <NumberField label="CPUs" value={form.cpus} placeholder={String(environment?.limits.cpus ?? "")} />
                    <NumberField
                        label="Disk (MiB)"
                        step="1"
                        value={form.diskMb}
                        placeholder={String(environment?.limits.disk_mb ?? "")}
                    />
                    <NumberField
                        label="Processes"
                        step="1"
                        value={form.processes}
                        placeholder={String(environment?.limits.pids ?? "")}
                    />
                </div>
                <datalist id="images">
                    {images.data.value?.images.map((image) => (
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
                    <MinutesField
                        label="Ends when it was not used for"
                        value={form.idleMinutes}
                        placeholder={minutes(environment?.idle_timeout_s)}
                    />
                    <MinutesField
                        label="Ends in any case after"
                        value={form.lifetimeMinutes}
                        placeholder={minutes(environment?.max_lifetime_s)}
                    />
                </div>
            </details>
            <details>
                <summary>Network</summary>
                <fieldset>
                    <legend>It may reach</legend>
                    {NETWORK_CHOICES.map(([value, label]) => (
                        <label key={value} class="inline">
                            <input
                                type="radio"
                                name="reach"
                                checked={network.value === value}
                                onChange={() => (network.value = value)}
                            />
                            {label}
                        </label>
                    ))}
                </fieldset>
                {network.value === "some" && (
                    <TextAreaField
                        label="Allowed, one on each line"
                        value={form.rules}
                        placeholder={"api.example.com\n*.example.org:443"}
                    />
                )}
                {network.value === "internet" && (
                    <TextAreaField label="Refused all the same, one on each line" value={form.rules} />
                )}
            </details>
            <details>
                <summary>Metadata</summary>
                <TextAreaField
                    label="Notes of your own, one on each line"
                    value={form.metadata}
                    placeholder="user=u-7"
                />
            </details>
        </FormDialog>
    );
}

const minutes = (seconds: number | null | undefined): string =>
    seconds ? String(Math.round(seconds / 60)) : "As the server says";

function describeEnvironment({ description, image, limits, network }: EnvironmentView): string {
    const size = `${limits.cpus} CPU, ${formatBytes(limits.memory_mb * MIB)} memory, ${formatBytes(limits.disk_mb * MIB)} disk`;
    const access = network.internet ? "internet" : network.allow.length ? "some of the network" : "no network";
    return [description.replace(/\.$/, ""), `Image ${image}, ${size}, ${access}`].filter(Boolean).join(". ");
}
