// A dialog over the page. Escape and a click beside it close it; the focus goes back to where it was.

import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";

export function Dialog({
    title,
    onClose,
    children,
}: {
    title: string;
    onClose: () => void;
    children: ComponentChildren;
}) {
    const ref = useRef<HTMLDialogElement>(null);
    useEffect(() => {
        const before = document.activeElement;
        ref.current!.showModal();
        ref.current!.querySelector<HTMLElement>("input, select, textarea, .buttons button")?.focus();
        return () => {
            // What was there may be gone, such as the row of a session that was ended.
            if (before instanceof HTMLElement && before.isConnected) before.focus();
            else document.getElementById("main")?.focus({ preventScroll: true });
        };
    }, []);
    return (
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
