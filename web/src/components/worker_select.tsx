import type { Signal } from "@preact/signals";

import { get } from "../api/client";
import type { ClusterView } from "../api/schemas";
import { serverInfo } from "../auth/account";
import { SelectField } from "./fields";
import { useRequest } from "./request";

interface Props {
    label: string;
    /** What the option says that names no worker. */
    any: string;
    value: Signal<string>;
}

/** Chooses a worker of the cluster. Renders nothing if there is no cluster. */
export function WorkerSelect({ label, any, value }: Props) {
    const isCluster = serverInfo.value!.cluster;
    const workers = useRequest(
        async (signal) => (isCluster ? (await get<ClusterView>("/api/cluster", {}, signal)).workers : []),
        [],
        10_000,
    );
    if (!isCluster) return null;
    const live = (workers.data.value ?? []).filter((worker) => worker.state !== "dead").map((worker) => worker.id);
    const names = new Set(value.value ? [...live, value.value] : live);
    return (
        <SelectField
            label={label}
            value={value.value}
            options={[["", any], ...[...names].sort().map((name) => [name, name] as const)]}
            onChange={(worker) => {
                value.value = worker;
            }}
        />
    );
}
