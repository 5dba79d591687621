// The images of the machine, and the builds that make them.

import { type Signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

import { facts, may } from "../account";
import { call, get, remove } from "../api";
import { TextField } from "../parts/fields";
import { Shown, useLoaded } from "../parts/load";
import { attempt } from "../parts/messages";
import { Table } from "../parts/table";
import { bytes, fullTime } from "../parts/units";
import { WorkerChoice } from "../parts/worker_choice";

interface Image {
    name: string;
    version: string;
    size_bytes: number;
    files: number;
    created_at: string;
}

interface Build {
    image: string;
    state: string;
    step: string;
    fraction: number | null;
    started_at: string;
    ended_at: string | null;
    lines: string[];
}

export function Images() {
    const worker = useSignal("");
    const images = useLoaded(
        (signal) => get<{ images: Image[] }>("/api/images", { worker: worker.value }, signal),
        [worker.value],
        30_000,
    );
    return (
        <>
            {may("admin") && facts.value!.cluster && (
                <div class="row">
                    <WorkerChoice label="Machine of" any="Any worker" value={worker} />
                </div>
            )}
            <Shown of={images}>
                {(found) => (
                    <Table
                        label="Images"
                        rows={found.images}
                        keyOf={(image) => image.name}
                        empty="There is no image: `warren image build base` makes one."
                        columns={[
                            { name: "Name", show: (image) => <strong>{image.name}</strong> },
                            { name: "Size", right: true, show: (image) => bytes(image.size_bytes) },
                            { name: "Files", right: true, show: (image) => image.files.toLocaleString() },
                            { name: "Made", show: (image) => fullTime(image.created_at) },
                            {
                                name: "Version",
                                show: (image) => <span class="mono">{image.version.slice(0, 16)}</span>,
                            },
                        ]}
                    />
                )}
            </Shown>
            {may("admin") && <Builds worker={worker} onEnded={images.again} />}
        </>
    );
}

function Builds({ worker, onEnded }: { worker: Signal<string>; onEnded: () => void }) {
    const loaded = useLoaded(
        (signal) => get<{ worker: string; builds: Build[] }>("/api/admin/builds", { worker: worker.value }, signal),
        [worker.value],
        5000,
    );
    const name = useSignal("");
    const open = useSignal("");
    const answered = loaded.value.value?.worker ?? "";
    useEffect(() => {
        // Each machine has builds of its own: what is shown must be of the same one the next time.
        if (facts.value!.cluster && !worker.value) worker.value = answered;
    }, [answered]);
    async function start(event: Event) {
        event.preventDefault();
        const query = { worker: worker.value };
        if (
            await attempt(
                () => call("POST", "/api/admin/builds", { query, body: { image: name.value.trim() } }),
                `The build of ${name.value} has begun`,
            )
        )
            name.value = "";
        loaded.again();
    }
    const cancel = (image: string) =>
        attempt(
            () => remove("/api/admin/builds", { image, worker: worker.value }),
            `The build of ${image} has ended`,
        ).then(() => {
            loaded.again();
            onEnded();
        });
    return (
        <section aria-labelledby="builds">
            <h2 id="builds">Builds</h2>
            <form class="row" onSubmit={start}>
                <TextField
                    label="Image to build"
                    value={name}
                    required
                    placeholder="base"
                    hint="One that has a recipe in the registry"
                />
                <button type="submit">Build</button>
            </form>
            <Shown of={loaded}>
                {(found) => (
                    <Table
                        label="Builds"
                        rows={found.builds}
                        keyOf={(build) => build.image}
                        empty={`Nothing was built ${worker.value ? `by ${worker.value}` : "here"} since it was started.`}
                        columns={[
                            { name: "Image", show: (build) => <strong>{build.image}</strong> },
                            {
                                name: "State",
                                show: (build) => (
                                    <span
                                        class={`state ${{ building: "pending", done: "ok", failed: "failed" }[build.state] ?? ""}`}
                                    >
                                        {build.state}
                                    </span>
                                ),
                            },
                            {
                                name: "Step",
                                show: (build) =>
                                    `${build.step}${build.fraction === null ? "" : ` (${Math.round(100 * build.fraction)} %)`}`,
                            },
                            { name: "Begun", show: (build) => fullTime(build.started_at) },
                            { name: "Ended", show: (build) => (build.ended_at ? fullTime(build.ended_at) : "–") },
                            {
                                name: "Actions",
                                show: (build) => (
                                    <span class="actions">
                                        <button
                                            type="button"
                                            class="plain"
                                            aria-expanded={open.value === build.image}
                                            onClick={() => (open.value = open.value === build.image ? "" : build.image)}
                                        >
                                            Log
                                        </button>
                                        {build.state === "building" && (
                                            <button type="button" class="danger" onClick={() => cancel(build.image)}>
                                                Cancel
                                            </button>
                                        )}
                                    </span>
                                ),
                            },
                        ]}
                    />
                )}
            </Shown>
            {open.value && (
                <pre class="card" aria-label={`Last lines of ${open.value}`}>
                    {loaded.value.value?.builds.find((build) => build.image === open.value)?.lines.join("\n")}
                </pre>
            )}
        </section>
    );
}
