// The workers of a cluster: what they have, and taking them out of use.

import { useSignal } from "@preact/signals";

import { get, patch, path, remove } from "../api";
import { Confirm } from "../parts/confirm";
import { Shown, useLoaded } from "../parts/load";
import { attempt } from "../parts/messages";
import { Meter } from "../parts/meter";
import { Table } from "../parts/table";

interface Worker {
    id: string;
    state: string;
    address: string;
    version: string;
    provider: string;
    labels: Record<string, string>;
    sessions: number;
    capacity: number;
    pressure: number;
    ready: Record<string, number>;
    waiting: number;
    lease_left_s: number;
}

interface Cluster {
    coordinator: string;
    redis: string;
    settled: boolean;
    workers: Worker[];
}

export function Workers() {
    const loaded = useLoaded((signal) => get<Cluster>("/api/cluster", {}, signal), [], 5000);
    const leaving = useSignal<Worker | null>(null);
    const drain = (worker: Worker, draining: boolean) =>
        attempt(
            () => patch(path`/api/cluster/workers/${worker.id}`, { draining }),
            draining ? `${worker.id} gets no new sessions` : `${worker.id} gets sessions again`,
        ).then(loaded.again);
    return (
        <>
            <Shown of={loaded}>
                {(cluster) => (
                    <>
                        {cluster.redis !== "there" && (
                            <p class="note error" role="alert">
                                Redis is away. Sessions go on; new ones and failover wait for it.
                            </p>
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
                                    show: (worker) => (
                                        <>
                                            <strong>{worker.id}</strong> <span class="note">{worker.address}</span>
                                        </>
                                    ),
                                },
                                {
                                    name: "State",
                                    show: (worker) => <span class={`state ${worker.state}`}>{worker.state}</span>,
                                },
                                {
                                    name: "Sessions",
                                    right: true,
                                    show: (worker) => (
                                        <Meter value={worker.sessions} most={worker.capacity} text={String} />
                                    ),
                                },
                                {
                                    name: "Full",
                                    right: true,
                                    show: (worker) => `${Math.round(100 * worker.pressure)} %`,
                                },
                                {
                                    name: "Ready",
                                    show: (worker) =>
                                        Object.entries(worker.ready)
                                            .map(([name, count]) => `${name} ${count}`)
                                            .join(", "),
                                },
                                { name: "Waiting", right: true, show: (worker) => worker.waiting },
                                {
                                    name: "Labels",
                                    show: (worker) =>
                                        Object.entries(worker.labels)
                                            .map((pair) => pair.join("="))
                                            .join(", "),
                                },
                                { name: "Version", show: (worker) => worker.version },
                                {
                                    name: "Lease left",
                                    right: true,
                                    show: (worker) =>
                                        worker.lease_left_s > 0 ? `${worker.lease_left_s.toFixed(1)} s` : "none",
                                },
                                {
                                    name: "Actions",
                                    show: (worker) => (
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
                                                    onClick={() => (leaving.value = worker)}
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
            </Shown>
            {leaving.value && (
                <Confirm
                    title={`Forget ${leaving.value.id}`}
                    action="Forget it"
                    onClose={() => (leaving.value = null)}
                    onConfirm={() => remove(path`/api/cluster/workers/${leaving.value!.id}`).then(loaded.again)}
                >
                    <p>Its sessions are reported lost at once. Do this if the machine does not come back.</p>
                </Confirm>
            )}
        </>
    );
}
