// The dialog that saves the disk of a session as a snapshot.

import { useSignal } from "@preact/signals";

import { apiPath, post } from "../api/client";
import type { SessionView, SnapshotBody, SnapshotView } from "../api/schemas";
import { NumberField, TextField } from "../components/fields";
import { FormDialog } from "../components/form_dialog";
import { notify } from "../components/notifications";

const DAY_S = 86400;

export function SnapshotDialog({ session, onClose }: { session: SessionView; onClose: () => void }) {
    const name = useSignal("");
    const days = useSignal("");
    async function submit() {
        const body: SnapshotBody = {
            name: name.value.trim(),
            expires_in_s: days.value ? Number(days.value) * DAY_S : undefined,
        };
        const made = await post<SnapshotView>(apiPath`/api/sessions/${session.session_id}/snapshots`, body);
        notify(`Saved as ${made.name ?? made.snapshot_id}.`);
    }
    return (
        <FormDialog title="Save a snapshot" submitLabel="Save" busyLabel="Saving…" onSubmit={submit} onClose={onClose}>
            <p>
                The files of the session are saved as they are now; processes and memory are not. Secrets that programs
                have written into files are saved, too.
            </p>
            <TextField
                label="Name"
                value={name}
                maxLength={64}
                hint="Another snapshot of this name stays, under its id."
            />
            <NumberField label="Deleted after (days)" value={days} placeholder="As the server says" hint="0: never" />
            <p>
                <a href="/ui/snapshots">All snapshots</a>
            </p>
        </FormDialog>
    );
}
