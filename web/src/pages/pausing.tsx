// Pausing and resuming a session, and what is shown of one that stands still.

import { useSignal } from "@preact/signals";

import { apiPath, post } from "../api/client";
import type { SessionView } from "../api/schemas";
import { hasScope } from "../auth/account";
import { runAction } from "../components/notifications";
import { formatDateTime, formatDuration, secondsUntil } from "../lib/format";
import { isHibernated, isPaused } from "../lib/session_state";

interface Props {
    session: SessionView;
    onDone: () => unknown;
    className?: string;
    /** What a screen reader says besides the word on the button. */
    of?: string;
}

/** Pauses a session that runs, and resumes one that is paused. */
export function PauseButton({ session, onDone, className = "plain", of = "" }: Props) {
    const isBusy = useSignal(false);
    const resumes = isPaused(session.state);
    if (!hasScope("sessions") || (session.state !== "running" && !resumes)) return null;
    async function change() {
        if (isBusy.value) return;
        isBusy.value = true;
        const verb = resumes ? "resume" : "pause";
        await runAction(async () => {
            await post(`${apiPath`/api/sessions/${session.session_id}`}/${verb}`);
            await onDone();
        });
        isBusy.value = false;
    }
    const label = resumes ? "Resume" : "Pause";
    return (
        <button
            type="button"
            class={className}
            aria-disabled={isBusy.value} // a button that is disabled would lose the focus
            aria-label={of ? `${label} ${of}` : undefined}
            onClick={change}
        >
            {label}
        </button>
    );
}

/** How long a session has been paused. */
export function PausedFor({ since }: { since: string }) {
    return (
        <time dateTime={since} title={`Since ${formatDateTime(since)}`}>
            {formatDuration(-secondsUntil(since))}
        </time>
    );
}

/** Says when a session ends that nobody uses, or resumes. */
export function endsAt({ state, expires_at }: SessionView): string {
    return `Ends at ${formatDateTime(expires_at!)} if it is ${isPaused(state) ? "still paused" : "not used"}`;
}

/** Stands in the place of what would use the session, and so resume it. */
export function PausedNotice({ session, onDone }: Props) {
    return (
        <div class="card empty" role="status">
            <p>
                {isHibernated(session.state)
                    ? "This session is hibernated: its files are kept, its terminals and everything else that ran are gone."
                    : "This session is paused: its terminals and everything else in it stand still, and go on where they are."}
                {session.auto_resume ? " Any use resumes it." : " It is used again only after somebody resumes it."}
            </p>
            <PauseButton session={session} onDone={onDone} className="" of="this session" />
        </div>
    );
}
