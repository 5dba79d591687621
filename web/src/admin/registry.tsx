// The registry: agents, tools and prompts beside the environments.

import { useSignal } from "@preact/signals";

import { apiPath, get } from "../api/client";
import type { EntryLines, EntryView } from "../api/schemas";
import { Dialog } from "../components/dialog";
import { JsonTree } from "../components/json_tree";
import { RequestView, useRequest } from "../components/request";
import { Table } from "../components/table";

const KINDS = ["agents", "tools", "prompts", "environments"];

export function Registry() {
    const selected = useSignal<{ kind: string; name: string } | null>(null);
    return (
        <>
            {KINDS.map((kind) => (
                <RegistrySection key={kind} kind={kind} onSelect={(name) => (selected.value = { kind, name })} />
            ))}
            {selected.value && <EntryDialog {...selected.value} onClose={() => (selected.value = null)} />}
        </>
    );
}

function RegistrySection({ kind, onSelect }: { kind: string; onSelect: (name: string) => void }) {
    const loaded = useRequest((signal) => get<EntryLines>(apiPath`/api/registry/${kind}`, {}, signal), [kind]);
    return (
        <section aria-label={kind}>
            <h2>{kind[0]!.toUpperCase() + kind.slice(1)}</h2>
            <RequestView request={loaded}>
                {({ entries }) => (
                    <Table
                        label={kind}
                        rows={entries}
                        keyOf={(entry) => entry.name}
                        empty="There is none."
                        columns={[
                            {
                                name: "Name",
                                render: (entry) => (
                                    <button type="button" class="plain" onClick={() => onSelect(entry.name)}>
                                        {entry.name}
                                    </button>
                                ),
                            },
                            { name: "Description", render: (entry) => entry.description },
                        ]}
                    />
                )}
            </RequestView>
        </section>
    );
}

function EntryDialog({ kind, name, onClose }: { kind: string; name: string; onClose: () => void }) {
    const loaded = useRequest(
        (signal) => get<EntryView>(apiPath`/api/registry/${kind}/${name}`, {}, signal),
        [kind, name],
    );
    return (
        <Dialog title={name} onClose={onClose}>
            <RequestView request={loaded}>{(entry) => <JsonTree value={entry} />}</RequestView>
        </Dialog>
    );
}
