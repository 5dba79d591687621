// The dialog that lets a session live longer.

import { useSignal } from "@preact/signals";

import { apiPath, patch, post } from "../api/client";
import type { PatchBody, SessionView } from "../api/schemas";
import { Dialog } from "../components/dialog";
import { ErrorNote } from "../components/error_note";
import { MinutesField } from "../components/fields";
import { errorMessage, notify } from "../components/notifications";
import { formatDateTime, formatDuration } from "../lib/format";

export function ProlongDialog({
    session,
    onDone,
    onClose,
}: {
    session: SessionView;
    onDone: () => unknown;
    onClose: () => void;
}) {
    const before = { idle: inMinutes(session.idle_timeout_s), lifetime: inMinutes(session.max_lifetime_s) };
    const idle = useSignal(before.idle);
    const lifetime = useSignal(before.lifetime);
    const error = useSignal("");
    const isBusy = useSignal(false);
    const url = apiPath`/api/sessions/${session.session_id}`;
    async function run(work: () => Promise<unknown>, doneText: string) {
        isBusy.value = true;
        try {
            await work();
            notify(doneText);
            onDone();
            onClose();
        } catch (failure) {
            error.value = errorMessage(failure);
        }
        isBusy.value = false;
    }
    function submit(event: Event) {
        event.preventDefault();
        const body: PatchBody = {
            idle_timeout_s: idle.value === before.idle ? undefined : 60 * Number(idle.value),
            max_lifetime_s: lifetime.value === before.lifetime ? undefined : 60 * Number(lifetime.value),
        };
        run(() => patch(url, body), "The time-outs were changed.");
    }
    return (
        <Dialog title="Prolong the session" onClose={onClose}>
            <p class="note">
                It ends {session.expires_at ? `at ${formatDateTime(session.expires_at)} ` : ""}if it is not used. Each
                use gives it another {formatDuration(session.idle_timeout_s)}, until{" "}
                {formatDuration(session.max_lifetime_s)} after its beginning.
            </p>
            <div>
                <button
                    type="button"
                    disabled={isBusy.value}
                    onClick={() => run(() => post(`${url}/keep-alive`), "The idle time begins anew.")}
                >
                    Begin the idle time anew
                </button>
            </div>
            <form onSubmit={submit}>
                <MinutesField label="Ends when it was not used for" value={idle} required />
                <MinutesField label="Ends in any case after" value={lifetime} required />
                <ErrorNote text={error.value} />
                <div class="buttons">
                    <button type="button" class="plain" onClick={onClose}>
                        Cancel
                    </button>
                    <button type="submit" disabled={isBusy.value}>
                        Change the time-outs
                    </button>
                </div>
            </form>
        </Dialog>
    );
}

const inMinutes = (seconds: number): string => String(Number((seconds / 60).toFixed(2)));
