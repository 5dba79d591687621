// Short messages to whoever uses the page: what went wrong, what was done.

import { signal } from "@preact/signals";

import { ApiError } from "../api";

interface Message {
    id: number;
    text: string;
    kind: "error" | "done";
}

const messages = signal<Message[]>([]);
let lastId = 0;

export function tell(text: string, kind: Message["kind"] = "done"): void {
    const message = { id: ++lastId, text, kind };
    messages.value = [...messages.value.slice(-4), message];
    setTimeout(() => dismiss(message.id), kind === "error" ? 12_000 : 4_000);
}

function dismiss(id: number): void {
    messages.value = messages.value.filter((one) => one.id !== id);
}

export function describe(error: unknown): string {
    if (error instanceof ApiError) return sentence(error.remedy ? `${error.message} (${error.remedy})` : error.message);
    return error instanceof Error ? error.message : String(error);
}

/** Messages of the API begin in small letters, unless with a name. */
const sentence = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1);

/** Does something for a click, and says so if it fails. */
export async function attempt(work: () => Promise<unknown>, done = ""): Promise<boolean> {
    try {
        await work();
        if (done) tell(done);
        return true;
    } catch (error) {
        tell(describe(error), "error");
        return false;
    }
}

export function Messages() {
    return (
        <div class="messages" role="status" aria-live="polite">
            {messages.value.map((message) => (
                <div key={message.id} class={`message ${message.kind}`}>
                    <span>{message.text}</span>
                    <button type="button" class="quiet" aria-label="Dismiss" onClick={() => dismiss(message.id)}>
                        ×
                    </button>
                </div>
            ))}
        </div>
    );
}
