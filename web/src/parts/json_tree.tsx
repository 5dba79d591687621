// JSON as a tree that opens part by part, so that a large value costs little until somebody looks into it.

import { useSignal } from "@preact/signals";

const MOST_ENTRIES = 200;
const MOST_TEXT = 2000;

export function JsonTree({ value, open = 1 }: { value: unknown; open?: number }) {
    if (value === null || typeof value !== "object") return <span class="json-value">{shortText(value)}</span>;
    return <Branch value={value} open={open} />;
}

function Branch({ value, open }: { value: object; open: number }) {
    const isOpen = useSignal(open > 0);
    const entries = Object.entries(value);
    const label = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
    if (entries.length === 0) return <span class="json-value">{Array.isArray(value) ? "[]" : "{}"}</span>;
    return (
        <details class="json" open={isOpen.value} onToggle={(event) => (isOpen.value = event.currentTarget.open)}>
            <summary>{label}</summary>
            {isOpen.value && (
                <ul>
                    {entries.slice(0, MOST_ENTRIES).map(([name, one]) => (
                        <li key={name}>
                            <span class="json-name">{name}</span>: <JsonTree value={one} open={open - 1} />
                        </li>
                    ))}
                    {entries.length > MOST_ENTRIES && <li class="note">{entries.length - MOST_ENTRIES} more</li>}
                </ul>
            )}
        </details>
    );
}

function shortText(value: unknown): string {
    const text = typeof value === "string" ? JSON.stringify(value) : String(value);
    return text.length > MOST_TEXT ? `${text.slice(0, MOST_TEXT)}… (${text.length} characters)` : text;
}
