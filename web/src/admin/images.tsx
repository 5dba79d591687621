// The images of the machine, and the builds that make them.

import { type Signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

import { get, remove, requestJson } from "../api/client";
import type { BuildList, ImageList } from "../api/schemas";
import { hasScope, serverInfo } from "../auth/account";
import { TextField } from "../components/fields";
import { runAction } from "../components/notifications";
import { RequestView, useRequest } from "../components/request";
import { Table } from "../components/table";
import { WorkerSelect } from "../components/worker_select";
import { formatBytes, formatDateTime } from "../lib/format";

export function Images() {
    const worker = useSignal("");
    const images = useRequest(
        (signal) => get<ImageList>("/api/images", { worker: worker.value }, signal),
        [worker.value],
        30_000,
    );
    return (
        <>
            {hasScope("admin") && serverInfo.value!.cluster && (
                <div class="row">
                    <WorkerSelect label="Machine of" any="Any worker" value={worker} />
                </div>
            )}
            <RequestView request={images}>
                {(found) => (
                    <Table
                        label="Images"
                        rows={found.images}
                        keyOf={(image) => image.name}
                        empty="There is no image: `warren image build base` makes one."
                        columns={[
                            { name: "Name", render: (image) => <strong>{image.name}</strong> },
                            { name: "Size", right: true, render: (image) => formatBytes(image.size_bytes) },
                            { name: "Files", right: true, render: (image) => image.files.toLocaleString() },
                            { name: "Made", render: (image) => formatDateTime(image.created_at) },
                            {
                                name: "Version",
                                render: (image) => <span class="mono">{image.version.slice(0, 16)}</span>,
                            },
                        ]}
                    />
                )}
            </RequestView>
            {hasScope("admin") && <Builds worker={worker} onEnded={images.reload} />}
        </>
    );
}

function Builds({ worker, onEnded }: { worker: Signal<string>; onEnded: () => void }) {
    const loaded = useRequest(
        (signal) => get<BuildList>("/api/admin/builds", { worker: worker.value }, signal),
        [worker.value],
        5000,
    );
    const name = useSignal("");
    const openLog = useSignal("");
    const answeringWorker = loaded.data.value?.worker ?? "";
    useEffect(() => {
        // Each machine has its own builds: ask the same one the next time.
        if (serverInfo.value!.cluster && !worker.value) worker.value = answeringWorker;
    }, [answeringWorker]);
    async function start(event: Event) {
        event.preventDefault();
        const query = { worker: worker.value };
        if (
            await runAction(
                () => requestJson("POST", "/api/admin/builds", { query, body: { image: name.value.trim() } }),
                `The build of ${name.value} has begun`,
            )
        )
            name.value = "";
        loaded.reload();
    }
    const cancel = (image: string) =>
        runAction(
            () => remove("/api/admin/builds", { image, worker: worker.value }),
            `The build of ${image} has ended`,
        ).then(() => {
            loaded.reload();
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
            <RequestView request={loaded}>
                {(found) => (
                    <Table
                        label="Builds"
                        rows={found.builds}
                        keyOf={(build) => build.image}
                        empty={`Nothing was built ${worker.value ? `by ${worker.value}` : "here"} since it was started.`}
                        columns={[
                            { name: "Image", render: (build) => <strong>{build.image}</strong> },
                            {
                                name: "State",
                                render: (build) => (
                                    <span
                                        class={`state ${{ building: "pending", done: "ok", failed: "failed" }[build.state] ?? ""}`}
                                    >
                                        {build.state}
                                    </span>
                                ),
                            },
                            {
                                name: "Step",
                                render: (build) =>
                                    `${build.step}${build.fraction === null ? "" : ` (${Math.round(100 * build.fraction)} %)`}`,
                            },
                            { name: "Begun", render: (build) => formatDateTime(build.started_at) },
                            {
                                name: "Ended",
                                render: (build) => (build.ended_at ? formatDateTime(build.ended_at) : "–"),
                            },
                            {
                                name: "Actions",
                                render: (build) => (
                                    <span class="actions">
                                        <button
                                            type="button"
                                            class="plain"
                                            aria-expanded={openLog.value === build.image}
                                            onClick={() =>
                                                (openLog.value = openLog.value === build.image ? "" : build.image)
                                            }
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
            </RequestView>
            {openLog.value && (
                <pre class="card" role="log" aria-label={`Last lines of ${openLog.value}`}>
                    {loaded.data.value?.builds.find((build) => build.image === openLog.value)?.lines.join("\n")}
                </pre>
            )}
        </section>
    );
}
