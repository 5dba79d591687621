// Asks before something that cannot be undone.

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";

import { Dialog } from "./dialog";
import { describe } from "./messages";

interface Props {
    title: string;
    action: string; // what the button says
    onConfirm: () => Promise<unknown>;
    onClose: () => void;
    children: ComponentChildren;
}

/** Closes when the work is done; if it fails, it stays and says why. */
export function Confirm({ title, action, onConfirm, onClose, children }: Props) {
    const busy = useSignal(false);
    const error = useSignal("");
    async function confirm(event: Event) {
        event.preventDefault();
        busy.value = true;
        try {
            await onConfirm();
            onClose();
        } catch (failure) {
            error.value = describe(failure);
        }
        busy.value = false;
    }
    return (
        <Dialog title={title} onClose={onClose}>
            <form onSubmit={confirm}>
                {children}
                {error.value && (
                    <p class="note error" role="alert">
                        {error.value}
                    </p>
                )}
                <div class="buttons">
                    <button type="button" class="plain" onClick={onClose}>
                        Cancel
                    </button>
                    <button type="submit" class="danger" disabled={busy.value}>
                        {action}
                    </button>
                </div>
            </form>
        </Dialog>
    );
}
