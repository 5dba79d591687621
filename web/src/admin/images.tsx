// The images of the machine, and the builds that make them.

import { useSignal } from "@preact/signals";

import { may } from "../account";
import { get, post, remove } from "../api";
import { TextField } from "../parts/fields";
import { Shown, useLoaded } from "../parts/load";
import { attempt } from "../parts/messages";
import { Table } from "../parts/table";
import { bytes, fullTime } from "../parts/units";

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
    const images = useLoaded((signal) => get<{ images: Image[] }>("/api/images", {}, signal), [], 30_000);
    return (
        <>
            <Shown of={images}>
                {(found) => (
                    <Table
                        label="Images" rows={found.images} keyOf={(image) => image.name} empty="There is no image: `warren image build base` makes one."
                        columns={[
                            { name: "Name", show: (image) => <strong>{image.name}</strong> },
                            { name: "Size", right: true, show: (image) => bytes(image.size_bytes) },
                            { name: "Files", right: true, show: (image) => image.files.toLocaleString() },
                            { name: "Made", show: (image) => fullTime(image.created_at) },
                            { name: "Version", show: (image) => <span class="mono">{image.version.slice(0, 16)}</span> },
                        ]}
                    />
                )}
            </Shown>
            {may("admin") && <Builds onEnded={images.again} />}
        </>
    );
}

function Builds({ onEnded }: { onEnded: () => void }) {
    const loaded = useLoaded((signal) => get<{ worker: string; builds: Build[] }>("/api/admin/builds", {}, signal), [], 5000);
    const name = useSignal("");
    const open = useSignal("");
    async function start(event: Event) {
        event.preventDefault();
        if (await attempt(() => post("/api/admin/builds", { image: name.value.trim() }), `The build of ${name.value} has begun`)) name.value = "";
        loaded.again();
    }
    const cancel = (image: string) => attempt(() => remove("/api/admin/builds", { image }), `The build of ${image} has ended`).then(() => { loaded.again(); onEnded(); });
    return (
        <section aria-labelledby="builds">
            <h2 id="builds">Builds</h2>
            <form class="row" onSubmit={start}>
                <TextField label="Image to build" value={name} required placeholder="base" hint="One that has a recipe in the registry" />
                <button type="submit">Build</button>
            </form>
            <Shown of={loaded}>
                {(found) => (
                    <Table
                        label="Builds" rows={found.builds} keyOf={(build) => build.image} empty="Nothing was built since the server was started."
                        columns={[
                            { name: "Image", show: (build) => <strong>{build.image}</strong> },
                            { name: "State", show: (build) => <span class={`state ${{ building: "pending", done: "ok", failed: "failed" }[build.state] ?? ""}`}>{build.state}</span> },
                            { name: "Step", show: (build) => `${build.step}${build.fraction === null ? "" : ` (${Math.round(100 * build.fraction)} %)`}` },
                            { name: "Begun", show: (build) => fullTime(build.started_at) },
                            { name: "Ended", show: (build) => (build.ended_at ? fullTime(build.ended_at) : "–") },
                            {
                                name: "Actions",
                                show: (build) => (
                                    <span class="actions">
                                        <button type="button" class="plain" aria-expanded={open.value === build.image} onClick={() => (open.value = open.value === build.image ? "" : build.image)}>Log</button>
                                        {build.state === "building" && <button type="button" class="danger" onClick={() => cancel(build.image)}>Cancel</button>}
                                    </span>
                                ),
                            },
                        ]}
                    />
                )}
            </Shown>
            {open.value && <pre class="card" aria-label={`Last lines of ${open.value}`}>{loaded.value.value?.builds.find((build) => build.image === open.value)?.lines.join("\n")}</pre>}
        </section>
    );
}
