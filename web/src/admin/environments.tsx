// The environments that sessions can be created from.

import { get } from "../api/client";
import type { EnvironmentList } from "../api/schemas";
import { RequestView, useRequest } from "../components/request";
import { Table } from "../components/table";
import { formatBytes, formatDuration, MIB } from "../lib/format";

export function Environments() {
    const loaded = useRequest((signal) => get<EnvironmentList>("/api/environments", {}, signal), []);
    return (
        <RequestView request={loaded}>
            {({ environments }) => (
                <Table
                    label="Environments"
                    rows={environments}
                    keyOf={(environment) => environment.name}
                    empty="There is no environment that you may use."
                    columns={[
                        {
                            name: "Name",
                            render: (environment) => (
                                <>
                                    <strong>{environment.name}</strong>{" "}
                                    {environment.default && <span class="state">default</span>}
                                </>
                            ),
                        },
                        { name: "Description", render: (environment) => environment.description },
                        {
                            name: "Image",
                            render: (environment) => (
                                <>
                                    {environment.image}{" "}
                                    {environment.image_state && (
                                        <span class={`state ${environment.image_state === "ready" ? "ready" : "warn"}`}>
                                            {environment.image_state}
                                        </span>
                                    )}
                                </>
                            ),
                        },
                        { name: "Provider", render: (environment) => environment.provider ?? "default" },
                        {
                            name: "Limits",
                            render: (environment) =>
                                `${formatBytes(environment.limits.memory_mb * MIB)} memory, ${environment.limits.cpus} cpus, ${formatBytes(environment.limits.disk_mb * MIB)} disk, ${environment.limits.pids} processes`,
                        },
                        {
                            name: "Root",
                            render: (environment) =>
                                [environment.root, environment.sudo && "sudo"].filter(Boolean).join(", "),
                        },
                        {
                            name: "Idle time-out",
                            right: true,
                            render: (environment) =>
                                [
                                    environment.idle_timeout_s === null
                                        ? "default"
                                        : formatDuration(environment.idle_timeout_s),
                                    environment.on_idle,
                                ]
                                    .filter(Boolean)
                                    .join(", then "),
                        },
                        {
                            name: "Needs",
                            render: (environment) =>
                                [
                                    ...environment.needs,
                                    ...environment.secrets.map((name) => `secret ${name}`),
                                    ...environment.gpus.map((id) => `gpu ${id}`),
                                    ...environment.volumes.map(({ name, path }) => `volume ${name} at ${path}`),
                                ].join(", "),
                        },
                    ]}
                />
            )}
        </RequestView>
    );
}
