// Lets a session live longer.

import { useSignal } from "@preact/signals";

import { patch, path, post } from "../api";
import { Dialog } from "../parts/dialog";
import { Minutes } from "../parts/fields";
import { describe, tell } from "../parts/messages";
import { duration, fullTime } from "../parts/units";
import type { Session } from "../types";

export function Prolong({
    session,
    onDone,
    onClose,
}: {
    session: Session;
    onDone: () => unknown;
    onClose: () => void;
}) {
    const before = { idle: inMinutes(session.idle_timeout_s), longest: inMinutes(session.max_lifetime_s) };
    const idle = useSignal(before.idle);
    const longest = useSignal(before.longest);
    const error = useSignal("");
    const busy = useSignal(false);
    const place = path`/api/sessions/${session.session_id}`;
    async function change(work: () => Promise<unknown>, done: string) {
        busy.value = true;
        try {
            await work();
            tell(done);
            onDone();
            onClose();
        } catch (failure) {
            error.value = describe(failure);
        }
        busy.value = false;
    }
    function submit(event: Event) {
        event.preventDefault();
        const times = {
            idle_timeout_s: idle.value === before.idle ? undefined : 60 * Number(idle.value),
            max_lifetime_s: longest.value === before.longest ? undefined : 60 * Number(longest.value),
        };
        change(() => patch(place, times), "The time-outs were changed.");
    }
    return (
        <Dialog title="Prolong the session" onClose={onClose}>
            <p class="note">
                It ends {session.expires_at ? `at ${fullTime(session.expires_at)} ` : ""}if it is not used. Each use
                gives it another {duration(session.idle_timeout_s)}, until {duration(session.max_lifetime_s)} after its
                beginning.
            </p>
            <div>
                <button
                    type="button"
                    disabled={busy.value}
                    onClick={() => change(() => post(`${place}/keep-alive`), "The idle time begins anew.")}
                >
                    Begin the idle time anew
                </button>
            </div>
            <form onSubmit={submit}>
                <Minutes label="Ends when it was not used for" value={idle} required />
                <Minutes label="Ends in any case after" value={longest} required />
                {error.value && (
                    <p class="note error" role="alert">
                        {error.value}
                    </p>
                )}
                <div class="buttons">
                    <button type="button" class="plain" onClick={onClose}>
                        Cancel
                    </button>
                    <button type="submit" disabled={busy.value}>
                        Change the time-outs
                    </button>
                </div>
            </form>
        </Dialog>
    );
}

const inMinutes = (seconds: number): string => String(Number((seconds / 60).toFixed(2)));
