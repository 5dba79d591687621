// A modal dialog. Escape and a click beside it close it, and the focus returns to where it was.

import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";

interface Props {
    title: string;
    onClose: () => void;
    children: ComponentChildren;
}

export function Dialog({ title, onClose, children }: Props) {
    const ref = useRef<HTMLDialogElement>(null);
    useEffect(() => {
        const focused = document.activeElement;
        ref.current!.showModal();
        ref.current!.querySelector<HTMLElement>("input, select, textarea, .buttons button")?.focus();
        return () => {
            // The element may be gone by now, such as the row of a session that was ended.
            if (focused instanceof HTMLElement && focused.isConnected) focused.focus();
            else document.getElementById("main")?.focus({ preventScroll: true });
        };
    }, []);
    return (
        // biome-ignore lint/a11y/useKeyWithClickEvents: the browser closes a modal dialog by Escape
        <dialog
            ref={ref}
            aria-label={title}
            onClose={onClose}
            onClick={(event) => event.target === ref.current && ref.current!.close()}
        >
            <div class="dialog">
                <header>
                    <h2>{title}</h2>
                    <button type="button" class="quiet" aria-label="Close" onClick={() => ref.current!.close()}>
                        ×
                    </button>
                </header>
                {children}
            </div>
        </dialog>
    );
}
