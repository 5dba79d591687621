// The dialog that starts sessions with the files that this one has.

import { useSignal } from "@preact/signals";

import { apiPath, post } from "../api/client";
import type { ForkView, SessionView } from "../api/schemas";
import { Dialog } from "../components/dialog";
import { ErrorNote } from "../components/error_note";
import { NumberField } from "../components/fields";
import { FormDialog } from "../components/form_dialog";

const MAX_FORKS = 20;

export function ForkDialog({ session, onClose }: { session: SessionView; onClose: () => void }) {
    const count = useSignal("1");
    const made = useSignal<ForkView | null>(null);
    async function submit() {
        const body = { count: Number(count.value) };
        made.value = await post<ForkView>(apiPath`/api/sessions/${session.session_id}/fork`, body);
    }
    if (made.value) return <ForksDialog forks={made.value} onClose={onClose} />;
    return (
        <FormDialog
            title="Fork the session"
            submitLabel="Fork"
            busyLabel="Forking…"
            onSubmit={submit}
            onClose={() => made.value || onClose()}
        >
            <p>New sessions start with the files of this one as they are now. Processes and memory are not copied.</p>
            <NumberField label="How many" value={count} step="1" min="1" max={String(MAX_FORKS)} required />
        </FormDialog>
    );
}

function ForksDialog({ forks: { sessions, errors }, onClose }: { forks: ForkView; onClose: () => void }) {
    return (
        <Dialog title="Forks" onClose={onClose}>
            <ul aria-label="New sessions">
                {sessions.map(({ session_id }) => (
                    <li key={session_id}>
                        <a class="mono" href={`/ui/sessions/${encodeURIComponent(session_id)}`} onClick={onClose}>
                            {session_id}
                        </a>
                    </li>
                ))}
            </ul>
            {errors.map(({ number, detail, remedy }) => (
                <ErrorNote key={number} text={`Number ${number + 1} was not made: ${detail} (${remedy})`} />
            ))}
            <div class="buttons">
                <button type="button" onClick={onClose}>
                    Close
                </button>
            </div>
        </Dialog>
    );
}
