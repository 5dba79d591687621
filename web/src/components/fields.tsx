// Form fields, each with a label and an optional hint.

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

interface InputAttributes {
    value: string;
    onInput: (event: { currentTarget: { value: string } }) => void;
    placeholder?: string;
    required?: boolean;
    "aria-describedby"?: string;
}

/** Renders the label and the hint. `children` renders the input with the attributes that it is given. */
function Field({
    children,
    label,
    hint,
    value,
    ...rest
}: FieldProps & { children: (attributes: InputAttributes) => ComponentChildren }) {
    const id = useId();
    const attributes = {
        ...rest,
        value: value.value,
        onInput: (event: { currentTarget: { value: string } }) => {
            value.value = event.currentTarget.value;
        },
        "aria-describedby": hint ? id : undefined,
    };
    return (
        <div class="field">
            {/* biome-ignore lint/a11y/noLabelWithoutControl: the children are the control */}
            <label>
                {label}
                {children(attributes)}
            </label>
            {hint && <small id={id}>{hint}</small>}
        </div>
    );
}

export function TextField({ list, maxLength, ...field }: FieldProps & { list?: string; maxLength?: number }) {
    return (
        <Field {...field}>
            {(attributes) => (
                <input
                    type="text"
                    spellcheck={false}
                    autocomplete="off"
                    list={list}
                    maxLength={maxLength}
                    {...attributes}
                />
            )}
        </Field>
    );
}

type NumberProps = FieldProps & { step?: string; min?: string; max?: string };

export function NumberField({ step = "any", min = "0", max, ...field }: NumberProps) {
    return (
        <Field {...field}>
            {(attributes) => <input type="number" min={min} max={max} step={step} {...attributes} />}
        </Field>
    );
}

export const MinutesField = ({ label, ...rest }: FieldProps) => <NumberField label={`${label} (minutes)`} {...rest} />;

export function TextAreaField(field: FieldProps) {
    return <Field {...field}>{(attributes) => <textarea rows={3} spellcheck={false} {...attributes} />}</Field>;
}

interface SelectProps {
    label: string;
    value: string;
    /** Pairs of a value and its label. */
    options: readonly (readonly [string, string])[];
    onChange: (value: string) => void;
}

export function SelectField({ label, value, options, onChange }: SelectProps) {
    return (
        <label>
            {label}
            <select value={value} onChange={(event) => onChange(event.currentTarget.value)}>
                {options.map(([option, text]) => (
                    <option key={option} value={option}>
                        {text}
                    </option>
                ))}
            </select>
        </label>
    );
}

interface CheckboxProps {
    label: string;
    checked: boolean;
    disabled?: boolean;
    onChange: (checked: boolean) => void;
}

export function CheckboxField({ label, checked, disabled, onChange }: CheckboxProps) {
    return (
        <label class="inline">
            <input
                type="checkbox"
                checked={checked}
                disabled={disabled}
                onChange={(event) => onChange(event.currentTarget.checked)}
            />
            {label}
        </label>
    );
}
