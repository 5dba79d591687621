// Fields of forms.

import type { Signal } from "@preact/signals";
import type { ComponentChildren } from "preact";

interface FieldProps {
    label: string;
    value: Signal<string>;
    hint?: ComponentChildren;
    placeholder?: string;
    required?: boolean;
}

export function TextField({ label, value, hint, list, maxLength, ...rest }: FieldProps & { list?: string; maxLength?: number }) {
    return (
        <label>
            {label}
            <input type="text" spellcheck={false} autocomplete="off" list={list} maxLength={maxLength} value={value.value} onInput={(event) => (value.value = event.currentTarget.value)} {...rest} />
            {hint && <small>{hint}</small>}
        </label>
    );
}

export function NumberField({ label, value, hint, step = "any", ...rest }: FieldProps & { step?: string }) {
    return (
        <label>
            {label}
            <input type="number" min="0" step={step} value={value.value} onInput={(event) => (value.value = event.currentTarget.value)} {...rest} />
            {hint && <small>{hint}</small>}
        </label>
    );
}

export const Minutes = ({ label, ...rest }: FieldProps) => <NumberField label={`${label} (minutes)`} {...rest} />;

export function LinesField({ label, value, hint, placeholder }: FieldProps) {
    return (
        <label>
            {label}
            <textarea rows={3} spellcheck={false} placeholder={placeholder} value={value.value} onInput={(event) => (value.value = event.currentTarget.value)} />
            {hint && <small>{hint}</small>}
        </label>
    );
}

/** The lines of a text that are not empty. */
export const linesOf = (text: string): string[] => text.split("\n").map((line) => line.trim()).filter(Boolean);
