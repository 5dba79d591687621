// Dialogs with a form, and the question before something that cannot be undone.

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";

import { Dialog } from "./dialog";
import { ErrorNote } from "./error_note";
import { errorMessage } from "./notifications";

interface Props {
    title: string;
    submitLabel: string;
    /** What the submit button says while the work is under way. */
    busyLabel?: string;
    danger?: boolean;
    onSubmit: () => Promise<unknown>;
    onClose: () => void;
    children: ComponentChildren;
}

/** Closes when `onSubmit` is done. If that fails, the dialog stays open and shows the error. */
export function FormDialog({
    title,
    submitLabel,
    busyLabel = submitLabel,
    danger,
    onSubmit,
    onClose,
    children,
}: Props) {
    const isBusy = useSignal(false);
    const error = useSignal("");
    async function submit(event: Event) {
        event.preventDefault();
        isBusy.value = true;
        try {
            await onSubmit();
            onClose();
        } catch (failure) {
            error.value = errorMessage(failure);
        }
        isBusy.value = false;
    }
    return (
        <Dialog title={title} onClose={onClose}>
            <form onSubmit={submit}>
                {children}
                <ErrorNote text={error.value} />
                <div class="buttons">
                    <button type="button" class="plain" onClick={onClose}>
                        Cancel
                    </button>
                    <button type="submit" class={danger ? "danger" : undefined} disabled={isBusy.value}>
                        {isBusy.value ? busyLabel : submitLabel}
                    </button>
                </div>
            </form>
        </Dialog>
    );
}

type ConfirmProps = Pick<Props, "title" | "onClose" | "children"> & {
    action: string; // what the button says
    onConfirm: () => Promise<unknown>;
};

export function ConfirmDialog({ action, onConfirm, ...dialog }: ConfirmProps) {
    return <FormDialog {...dialog} submitLabel={action} onSubmit={onConfirm} danger />;
}
