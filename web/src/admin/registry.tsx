// The registry: agents, tools and prompts beside the environments.

import { useSignal } from "@preact/signals";

import { get, path } from "../api";
import { Dialog } from "../parts/dialog";
import { JsonTree } from "../parts/json_tree";
import { Shown, useLoaded } from "../parts/load";
import { Table } from "../parts/table";

interface Entry {
    name: string;
    description: string;
}

const KINDS = ["agents", "tools", "prompts", "environments"];

export function Registry() {
    const chosen = useSignal<{ kind: string; name: string } | null>(null);
    return (
        <>
            {KINDS.map((kind) => (
                <Kind key={kind} kind={kind} onChoose={(name) => (chosen.value = { kind, name })} />
            ))}
            {chosen.value && <Shape {...chosen.value} onClose={() => (chosen.value = null)} />}
        </>
    );
}

function Kind({ kind, onChoose }: { kind: string; onChoose: (name: string) => void }) {
    const loaded = useLoaded((signal) => get<{ entries: Entry[] }>(path`/api/registry/${kind}`, {}, signal), [kind]);
    return (
        <section aria-label={kind}>
            <h2>{kind[0]!.toUpperCase() + kind.slice(1)}</h2>
            <Shown of={loaded}>
                {({ entries }) => (
                    <Table
                        label={kind}
                        rows={entries}
                        keyOf={(entry) => entry.name}
                        empty="There is none."
                        columns={[
                            {
                                name: "Name",
                                show: (entry) => (
                                    <button type="button" class="plain" onClick={() => onChoose(entry.name)}>
                                        {entry.name}
                                    </button>
                                ),
                            },
                            { name: "Description", show: (entry) => entry.description },
                        ]}
                    />
                )}
            </Shown>
        </section>
    );
}

function Shape({ kind, name, onClose }: { kind: string; name: string; onClose: () => void }) {
    const loaded = useLoaded(
        (signal) => get<Record<string, unknown>>(path`/api/registry/${kind}/${name}`, {}, signal),
        [kind, name],
    );
    return (
        <Dialog title={name} onClose={onClose}>
            <Shown of={loaded}>{(entry) => <JsonTree value={entry} />}</Shown>
        </Dialog>
    );
}
