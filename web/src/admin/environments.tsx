// The environments that sessions can be made of.

import { get } from "../api";
import { Shown, useLoaded } from "../parts/load";
import { Table } from "../parts/table";
import { bytes, duration } from "../parts/units";
import type { Environment } from "../types";

const MIB = 1024 * 1024;

export function Environments() {
    const loaded = useLoaded((signal) => get<{ environments: Environment[] }>("/api/environments", {}, signal), []);
    return (
        <Shown of={loaded}>
            {({ environments }) => (
                <Table
                    label="Environments"
                    rows={environments}
                    keyOf={(one) => one.name}
                    empty="There is no environment that you may use."
                    columns={[
                        {
                            name: "Name",
                            show: (one) => (
                                <>
                                    <strong>{one.name}</strong> {one.default && <span class="state">default</span>}
                                </>
                            ),
                        },
                        { name: "Description", show: (one) => one.description },
                        {
                            name: "Image",
                            show: (one) => (
                                <>
                                    {one.image}{" "}
                                    {one.image_state && (
                                        <span class={`state ${one.image_state === "ready" ? "ready" : "warn"}`}>
                                            {one.image_state}
                                        </span>
                                    )}
                                </>
                            ),
                        },
                        { name: "Provider", show: (one) => one.provider ?? "default" },
                        {
                            name: "Limits",
                            show: (one) =>
                                `${bytes(one.limits.memory_mb * MIB)} memory, ${one.limits.cpus} cpus, ${bytes(one.limits.disk_mb * MIB)} disk, ${one.limits.pids} processes`,
                        },
                        { name: "Root", show: (one) => [one.root, one.sudo && "sudo"].filter(Boolean).join(", ") },
                        {
                            name: "Idle time-out",
                            right: true,
                            show: (one) => (one.idle_timeout_s === null ? "default" : duration(one.idle_timeout_s)),
                        },
                        {
                            name: "Needs",
                            show: (one) =>
                                [
                                    ...one.needs,
                                    ...one.secrets.map((name) => `secret ${name}`),
                                    ...one.gpus.map((id) => `gpu ${id}`),
                                ].join(", "),
                        },
                    ]}
                />
            )}
        </Shown>
    );
}
