// The volumes that a session has in its sandbox, and mounting others.

import { useSignal } from "@preact/signals";

import { apiPath, get, post, remove } from "../api/client";
import type { SessionView, VolumeBody, VolumeMountView, VolumePage } from "../api/schemas";
import { hasScope } from "../auth/account";
import { CheckboxField, NumberField, TextField } from "../components/fields";
import { ConfirmDialog, FormDialog } from "../components/form_dialog";
import { useRequest } from "../components/request";
import { Table } from "../components/table";
import { escapeName } from "../lib/escape";
import type { TabProps } from "../pages/session";

export function VolumesTab({ session, reload }: TabProps) {
    const isAttaching = useSignal(false);
    const detached = useSignal<VolumeMountView | null>(null);
    const url = apiPath`/api/sessions/${session.session_id}/volumes`;
    const canChange = hasScope("sessions");
    return (
        <>
            {canChange && (
                <div class="row">
                    <button type="button" onClick={() => (isAttaching.value = true)}>
                        Attach a volume
                    </button>
                    <a href="/ui/volumes">All volumes</a>
                </div>
            )}
            <Table
                label="Volumes of this session"
                rows={session.volumes}
                keyOf={(mount) => mount.path}
                empty="It has no volume."
                columns={[
                    { name: "Volume", render: (mount) => mount.name },
                    { name: "Path", render: (mount) => <code>{escapeName(mount.path)}</code> },
                    { name: "Access", render: (mount) => (mount.read_only ? "read only" : "read and write") },
                    {
                        name: "Actions",
                        render: (mount) =>
                            canChange && (
                                <button
                                    type="button"
                                    class="plain small"
                                    aria-label={`Detach ${mount.name}`}
                                    onClick={() => (detached.value = mount)}
                                >
                                    Detach
                                </button>
                            ),
                    },
                ]}
            />
            {isAttaching.value && (
                <AttachDialog url={url} onDone={reload} onClose={() => (isAttaching.value = false)} />
            )}
            {detached.value && (
                <ConfirmDialog
                    title="Detach the volume?"
                    action="Detach it"
                    onConfirm={() => remove(url, { path: detached.value!.path }).then(reload)}
                    onClose={() => (detached.value = null)}
                >
                    <p>
                        {detached.value.name} is taken from {escapeName(detached.value.path)} and keeps what is in it.
                        What programs have open there stays open for them.
                    </p>
                </ConfirmDialog>
            )}
        </>
    );
}

function AttachDialog({ url, onDone, onClose }: { url: string; onDone: () => unknown; onClose: () => void }) {
    const volumes = useRequest((signal) => get<VolumePage>("/api/volumes", {}, signal), []);
    const name = useSignal("");
    const path = useSignal("");
    const sizeMb = useSignal("");
    const readOnly = useSignal(false);
    async function submit() {
        const body: VolumeBody = {
            name: name.value.trim(),
            path: path.value.trim(),
            read_only: readOnly.value,
            size_mb: sizeMb.value ? Number(sizeMb.value) : undefined,
        };
        await post<SessionView>(url, body);
        await onDone();
    }
    return (
        <FormDialog title="Attach a volume" submitLabel="Attach" onSubmit={submit} onClose={onClose}>
            <TextField label="Volume" value={name} list="volumes" required />
            <datalist id="volumes">
                {volumes.data.value?.volumes.map((volume) => (
                    <option key={volume.volume_id} value={volume.name} />
                ))}
            </datalist>
            <TextField label="Path in the sandbox" value={path} placeholder="/workspace/data" required />
            <CheckboxField label="Read only" checked={readOnly.value} onChange={(on) => (readOnly.value = on)} />
            <NumberField
                label="Size, if it is to be made (MiB)"
                value={sizeMb}
                step="1"
                min="1"
                hint="Without a size it must be there already."
            />
        </FormDialog>
    );
}
