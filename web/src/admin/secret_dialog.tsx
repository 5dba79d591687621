// Shows a new secret, which the server does not show again.

import { useRef } from "preact/hooks";

import { Dialog } from "../components/dialog";
import { runAction } from "../components/notifications";

export function SecretDialog({ title, text, onClose }: { title: string; text: string; onClose: () => void }) {
    const field = useRef<HTMLInputElement>(null);
    return (
        <Dialog title={title} onClose={onClose}>
            <p>It is shown this once. Keep it where your program finds it.</p>
            <label>
                {title}
                <input
                    ref={field}
                    class="mono"
                    type="text"
                    readOnly
                    value={text}
                    onFocus={(event) => event.currentTarget.select()}
                />
            </label>
            <div class="buttons">
                <button
                    type="button"
                    class="plain"
                    onClick={() => runAction(() => navigator.clipboard.writeText(text), "Copied")}
                >
                    Copy
                </button>
                <button type="button" onClick={onClose}>
                    Done
                </button>
            </div>
        </Dialog>
    );
}
