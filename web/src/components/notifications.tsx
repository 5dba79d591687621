// Short messages that appear over the page for some seconds: what was done, or what went wrong.

import { signal } from "@preact/signals";

import { ApiError } from "../api/client";

interface Notification {
    id: number;
    text: string;
    kind: "error" | "done";
}

const MAX_SHOWN = 5;

const notifications = signal<Notification[]>([]);
let lastId = 0;

export function notify(text: string, kind: Notification["kind"] = "done"): void {
    lastId += 1;
    const id = lastId;
    notifications.value = [...notifications.value, { id, text, kind }].slice(-MAX_SHOWN);
    setTimeout(() => dismiss(id), kind === "error" ? 12_000 : 4_000);
}

function dismiss(id: number): void {
    notifications.value = notifications.value.filter((notification) => notification.id !== id);
}

/** Returns what to show to a user about an error. */
export function errorMessage(error: unknown): string {
    if (error instanceof ApiError)
        return capitalize(error.remedy ? `${error.message} (${error.remedy})` : error.message);
    return error instanceof Error ? error.message : String(error);
}

/** Messages of the API begin in small letters, unless with a name. */
const capitalize = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1);

/** Runs the work of a button, and shows a notification when it fails or, with `doneText`, when it succeeds. Returns
 *  whether it has succeeded. */
export async function runAction(work: () => Promise<unknown>, doneText = ""): Promise<boolean> {
    try {
        await work();
        if (doneText) notify(doneText);
        return true;
    } catch (error) {
        notify(errorMessage(error), "error");
        return false;
    }
}

export function Notifications() {
    return (
        <div class="messages" role="status" aria-live="polite">
            {notifications.value.map(({ id, kind, text }) => (
                <div key={id} class={`message ${kind}`}>
                    <span>{text}</span>
                    <button type="button" class="quiet" aria-label="Dismiss" onClick={() => dismiss(id)}>
                        ×
                    </button>
                </div>
            ))}
        </div>
    );
}
