// Fields of forms, each with its label and perhaps a hint.

import type { Signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";

interface FieldProps {
    label: string;
    value: Signal<string>;
    hint?: string;
    placeholder?: string;
    required?: boolean;
}

type Input = { currentTarget: { value: string } };

/** The label and the hint of what `children` makes of its attributes. */
function Field({ label, hint, value, children }: FieldProps & { children: (attributes: object) => ComponentChildren }) {
    const id = useId();
    const onInput = (event: Input) => (value.value = event.currentTarget.value);
    return (
        <div class="field">
            <label>
                {label}
                {children({ value: value.value, onInput, "aria-describedby": hint ? id : undefined })}
            </label>
            {hint && <small id={id}>{hint}</small>}
        </div>
    );
}

export function TextField({ list, maxLength, ...field }: FieldProps & { list?: string; maxLength?: number }) {
    const { placeholder, required } = field;
    const rest = { list, maxLength, placeholder, required };
    return (
        <Field {...field}>
            {(attributes) => <input type="text" spellcheck={false} autocomplete="off" {...rest} {...attributes} />}
        </Field>
    );
}

export function NumberField({ step = "any", ...field }: FieldProps & { step?: string }) {
    const { placeholder, required } = field;
    return (
        <Field {...field}>
            {(attributes) => (
                <input
                    type="number"
                    min="0"
                    step={step}
                    placeholder={placeholder}
                    required={required}
                    {...attributes}
                />
            )}
        </Field>
    );
}

export const Minutes = ({ label, ...rest }: FieldProps) => <NumberField label={`${label} (minutes)`} {...rest} />;

export function LinesField(field: FieldProps) {
    return (
        <Field {...field}>
            {(attributes) => <textarea rows={3} spellcheck={false} placeholder={field.placeholder} {...attributes} />}
        </Field>
    );
}

/** The lines of a text that are not empty. */
export const linesOf = (text: string): string[] =>
    text
        .split("\n")
        .map((line) => line.trim())
        .filter(Boolean);
