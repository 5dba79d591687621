// The dialog that creates a session from an environment.

import { type Signal, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { useLocation } from "preact-iso/router";

import { get, requestJson } from "../api/client";
import type { EnvironmentView, ImageList, SessionView, SnapshotPage, VolumePage } from "../api/schemas";
import { MinutesField, NumberField, SelectField, TextAreaField, TextField } from "../components/fields";
import { FormDialog } from "../components/form_dialog";
import { notify } from "../components/notifications";
import { useRequest } from "../components/request";
import { formatBytes, MIB, splitLines } from "../lib/format";
import {
    LOG_CHOICES,
    MISMATCH_CHOICES,
    NETWORK_CHOICES,
    type NetworkChoice,
    ON_IDLE_CHOICES,
    sessionBody,
} from "./new_session";

export function CreateSessionDialog({
    environments,
    snapshot = "",
    onClose,
}: {
    environments: readonly EnvironmentView[];
    /** The one that the form names at first. */
    snapshot?: string;
    onClose: () => void;
}) {
    const { route } = useLocation();
    const images = useRequest((signal) => get<ImageList>("/api/images", {}, signal), []);
    const snapshots = useRequest((signal) => get<SnapshotPage>("/api/snapshots", {}, signal), []);
    const volumes = useRequest((signal) => get<VolumePage>("/api/volumes", {}, signal), []);
    const selected = useSignal(""); // empty: that of the snapshot, or the default environment
    const form = {
        thread: useSignal(""),
        image: useSignal(""),
        memoryMb: useSignal(""),
        cpus: useSignal(""),
        diskMb: useSignal(""),
        processes: useSignal(""),
        idleMinutes: useSignal(""),
        lifetimeMinutes: useSignal(""),
        onIdle: useSignal(""),
        pausedHours: useSignal(""),
        snapshot: useSignal(snapshot),
        volumes: useSignal(""),
        logs: useSignal(""),
        onMismatch: useSignal(""),
        metadata: useSignal(""),
        rules: useSignal(""),
    };
    const isOfSnapshot = !selected.value && form.snapshot.value.trim() !== "";
    const environment = isOfSnapshot
        ? undefined
        : (environments.find((one) => (selected.value ? one.name === selected.value : one.default)) ?? environments[0]);
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
                        value={environment?.name ?? ""}
                        onChange={(event) => (selected.value = event.currentTarget.value)}
                        aria-describedby="environment-hint"
                    >
                        {form.snapshot.value.trim() && <option value="">That of the snapshot</option>}
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
            {form.thread.value.trim() && (
                <SelectField
                    label="If that one is of another kind"
                    value={form.onMismatch.value}
                    options={MISMATCH_CHOICES}
                    onChange={(value) => (form.onMismatch.value = value)}
                />
            )}
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
                    <SelectField
                        label="What happens when it was not used"
                        value={form.onIdle.value}
                        options={ON_IDLE_CHOICES}
                        onChange={(value) => (form.onIdle.value = value)}
                    />
                    <NumberField
                        label="Ends when it was paused for (hours)"
                        value={form.pausedHours}
                        placeholder="As the server says"
                    />
                </div>
            </details>
            <details open={snapshot !== ""}>
                <summary>Snapshot, volumes and log</summary>
                <div class="fields">
                    <TextField
                        label="Starts from the snapshot"
                        value={form.snapshot}
                        list="snapshots"
                        hint="A name or an id. It begins with the files of that."
                    />
                    <datalist id="snapshots">
                        {snapshots.data.value?.snapshots.map(({ snapshot_id, name }) => (
                            <option key={snapshot_id} value={name ?? snapshot_id} />
                        ))}
                    </datalist>
                    <VolumeChoice
                        volumes={volumes.data.value?.volumes.map(({ name }) => name) ?? []}
                        text={form.volumes}
                    />
                    <SelectField
                        label="Log that is kept"
                        value={form.logs.value}
                        options={LOG_CHOICES}
                        onChange={(value) => (form.logs.value = value)}
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

/** Volumes, one on each line. Choosing one adds its line. */
function VolumeChoice({ volumes, text }: { volumes: readonly string[]; text: Signal<string> }) {
    const add = (name: string) => {
        text.value = [...splitLines(text.value), `${name}:/workspace/${name}`].join("\n");
    };
    return (
        <>
            {volumes.length > 0 && (
                <SelectField
                    label="Add a volume"
                    value=""
                    options={[["", "Choose one"], ...volumes.map((name) => [name, name] as const)]}
                    onChange={add}
                />
            )}
            <TextAreaField
                label="Volumes, one on each line"
                value={text}
                placeholder={"cache:/workspace/cache\nmodels:/models:ro"}
            />
        </>
    );
}

const minutes = (seconds: number | null | undefined): string =>
    seconds ? String(Math.round(seconds / 60)) : "As the server says";

function describeEnvironment({ description, image, limits, network }: EnvironmentView): string {
    const size = `${limits.cpus} CPU, ${formatBytes(limits.memory_mb * MIB)} memory, ${formatBytes(limits.disk_mb * MIB)} disk`;
    const access = network.internet ? "internet" : network.allow.length ? "some of the network" : "no network";
    return [description.replace(/\.$/, ""), `Image ${image}, ${size}, ${access}`].filter(Boolean).join(". ");
}
