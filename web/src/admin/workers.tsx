// The workers of a cluster, and how to drain and remove them.

import { useSignal } from "@preact/signals";

import { apiPath, get, patch, remove } from "../api/client";
import type { ClusterView, WorkerView } from "../api/schemas";
import { ErrorNote } from "../components/error_note";
import { ConfirmDialog } from "../components/form_dialog";
import { Meter } from "../components/meter";
import { runAction } from "../components/notifications";
import { RequestView, useRequest } from "../components/request";
import { Table } from "../components/table";

export function Workers() {
    const loaded = useRequest((signal) => get<ClusterView>("/api/cluster", {}, signal), [], 5000);
    const forgotten = useSignal<WorkerView | null>(null);
    const drain = (worker: WorkerView, draining: boolean) =>
        runAction(
            () => patch(apiPath`/api/cluster/workers/${worker.id}`, { draining }),
            draining ? `${worker.id} gets no new sessions` : `${worker.id} gets sessions again`,
        ).then(loaded.reload);
    return (
        <>
            <RequestView request={loaded}>
                {(cluster) => (
                    <>
                        {cluster.redis !== "there" && (
                            <ErrorNote text="Redis is away. Sessions go on; new ones and failover wait for it." />
                        )}
                        {!cluster.settled && (
                            <p class="note">Redis has lost its data; workers are publishing theirs again.</p>
                        )}
                        <Table
                            label="Workers"
                            rows={cluster.workers}
                            keyOf={(worker) => worker.id}
                            empty="There is no worker: start one with `warren worker`."
                            columns={[
                                {
                                    name: "Worker",
                                    render: (worker) => (
                                        <>
                                            <strong>{worker.id}</strong> <span class="note">{worker.address}</span>
                                        </>
                                    ),
                                },
                                {
                                    name: "State",
                                    render: (worker) => <span class={`state ${worker.state}`}>{worker.state}</span>,
                                },
                                {
                                    name: "Sessions",
                                    right: true,
                                    render: (worker) => (
                                        <Meter value={worker.sessions} max={worker.capacity} format={String} />
                                    ),
                                },
                                {
                                    name: "Full",
                                    right: true,
                                    render: (worker) => `${Math.round(100 * worker.pressure)} %`,
                                },
                                {
                                    name: "Ready",
                                    render: (worker) =>
                                        Object.entries(worker.ready)
                                            .map(([name, count]) => `${name} ${count}`)
                                            .join(", "),
                                },
                                { name: "Waiting", right: true, render: (worker) => worker.waiting },
                                {
                                    name: "Labels",
                                    render: (worker) =>
                                        Object.entries(worker.labels)
                                            .map((pair) => pair.join("="))
                                            .join(", "),
                                },
                                { name: "Version", render: (worker) => worker.version },
                                {
                                    name: "Lease left",
                                    right: true,
                                    render: (worker) =>
                                        worker.lease_left_s > 0 ? `${worker.lease_left_s.toFixed(1)} s` : "none",
                                },
                                {
                                    name: "Actions",
                                    render: (worker) => (
                                        <span class="actions">
                                            {worker.state === "ready" && (
                                                <button
                                                    type="button"
                                                    class="plain small"
                                                    aria-label={`Drain ${worker.id}`}
                                                    onClick={() => drain(worker, true)}
                                                >
                                                    Drain
                                                </button>
                                            )}
                                            {worker.state === "draining" && (
                                                <button
                                                    type="button"
                                                    class="plain small"
                                                    aria-label={`Use again ${worker.id}`}
                                                    onClick={() => drain(worker, false)}
                                                >
                                                    Use again
                                                </button>
                                            )}
                                            {worker.state === "dead" && (
                                                <button
                                                    type="button"
                                                    class="danger small"
                                                    aria-label={`Forget ${worker.id}`}
                                                    onClick={() => (forgotten.value = worker)}
                                                >
                                                    Forget
                                                </button>
                                            )}
                                        </span>
                                    ),
                                },
                            ]}
                        />
                        <p class="note">Answered by the coordinator {cluster.coordinator}.</p>
                    </>
                )}
            </RequestView>
            {forgotten.value && (
                <ConfirmDialog
                    title={`Forget ${forgotten.value.id}`}
                    action="Forget it"
                    onClose={() => (forgotten.value = null)}
                    onConfirm={() => remove(apiPath`/api/cluster/workers/${forgotten.value!.id}`).then(loaded.reload)}
                >
                    <p>Its sessions are reported lost at once. Do this if the machine does not come back.</p>
                </ConfirmDialog>
            )}
        </>
    );
}
