// JSON as a tree. A branch is rendered when it is opened, so that a large value costs little.

import { useSignal } from "@preact/signals";

const MAX_ENTRIES = 200;
const MAX_TEXT = 2000;

export function JsonTree({ value, openDepth = 1 }: { value: unknown; openDepth?: number }) {
    if (value === null || typeof value !== "object") return <span class="json-value">{shortText(value)}</span>;
    return <Branch value={value} openDepth={openDepth} />;
}

function Branch({ value, openDepth }: { value: object; openDepth: number }) {
    const isOpen = useSignal(openDepth > 0);
    const entries = Object.entries(value);
    const [open, close] = Array.isArray(value) ? "[]" : "{}";
    if (entries.length === 0) return <span class="json-value">{`${open}${close}`}</span>;
    return (
        <details
            class="json"
            open={isOpen.value}
            onToggle={(event) => {
                isOpen.value = event.currentTarget.open;
            }}
        >
            <summary>{`${open}${entries.length}${close}`}</summary>
            {isOpen.value && (
                <ul>
                    {entries.slice(0, MAX_ENTRIES).map(([name, child]) => (
                        <li key={name}>
                            <span class="json-name">{name}</span>: <JsonTree value={child} openDepth={openDepth - 1} />
                        </li>
                    ))}
                    {entries.length > MAX_ENTRIES && <li class="note">{entries.length - MAX_ENTRIES} more</li>}
                </ul>
            )}
        </details>
    );
}

function shortText(value: unknown): string {
    const text = typeof value === "string" ? JSON.stringify(value) : String(value);
    return text.length > MAX_TEXT ? `${text.slice(0, MAX_TEXT)}… (${text.length} characters)` : text;
}
