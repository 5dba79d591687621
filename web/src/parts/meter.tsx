// How much of something is used, as a number and a bar.

import { percent } from "./units";

const HIGH = 90;

export function Meter({ value, most, text }: { value: number; most: number; text: (value: number) => string }) {
    const share = percent(value, most);
    return (
        <span class="metered" title={most > 0 ? `${text(value)} of ${text(most)}` : text(value)}>
            {text(value)}
            {most > 0 && (
                <span class={`meter ${share >= HIGH ? "high" : ""}`}>
                    <span style={{ width: `${share}%` }} />
                </span>
            )}
        </span>
    );
}
