import { percent } from "../lib/format";

const HIGH_PERCENT = 90;

interface Props {
    value: number;
    max: number;
    format: (value: number) => string;
}

/** A value, and a bar that shows how much of the maximum it is. Without a maximum (0) there is no bar. */
export function Meter({ value, max, format }: Props) {
    return (
        <span class="metered" title={max > 0 ? `${format(value)} of ${format(max)}` : format(value)}>
            {format(value)}
            <MeterBar value={value} max={max} />
        </span>
    );
}

export function MeterBar({ value, max }: Omit<Props, "format">) {
    if (max <= 0) return null;
    const share = percent(value, max);
    return (
        <span class={`meter ${share >= HIGH_PERCENT ? "high" : ""}`} aria-hidden="true">
            <span style={{ width: `${share}%` }} />
        </span>
    );
}
