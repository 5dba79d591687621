// A plot of values over time, drawn by uPlot. Beside it stands what it shows as a sentence, for who does not see it.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";

import { roundSteps } from "./steps";

export interface Line {
    label: string;
    values: readonly (number | null)[];
}

export interface Props {
    label: string;
    /** Seconds since 1970, rising. */
    times: readonly number[];
    /** At most four: there are so many colours. */
    lines: readonly Line[];
    /** A value with its unit. */
    show: (value: number) => string;
    /** Drawn as a broken line; the plot reaches up to it. */
    limit?: number;
    /** The values are whole multiples of powers of two, such as bytes. */
    binary?: boolean;
    height?: number;
}

const COLOURS = ["--accent", "--warn", "--good", "--bad"];
const LEAST_SPAN_S = 60;

export function Plot({ label, times, lines, show, limit, binary = false, height = 170 }: Props) {
    const place = useRef<HTMLDivElement>(null);
    const plot = useRef<uPlot | null>(null);
    const latest = useRef({ times, lines, limit });
    latest.current = { times, lines, limit };
    const shape = lines.map((line) => line.label).join("\n") + (limit === undefined ? "" : "\nlimit");

    useEffect(() => {
        const element = place.current!;
        const dark = matchMedia("(prefers-color-scheme: dark)");
        function draw() {
            plot.current?.destroy();
            const options = describePlot(
                element,
                latest.current.lines,
                show,
                limit !== undefined,
                binary,
                height,
                () => latest.current.limit,
            );
            plot.current = new uPlot(options, dataOf(latest.current), element);
        }
        draw();
        const resized = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height }));
        resized.observe(element);
        dark.addEventListener("change", draw);
        return () => {
            resized.disconnect();
            dark.removeEventListener("change", draw);
            plot.current?.destroy();
            plot.current = null;
        };
    }, [shape, height]);
    useEffect(() => plot.current?.setData(dataOf(latest.current)), [times, lines, limit]);

    return (
        <figure class="plot card">
            <figcaption>
                <h3>{label}</h3>
                <ul class="legend">
                    {lines.map((line, at) => (
                        <li key={line.label}>
                            <span class={`swatch colour-${at}`} aria-hidden="true" />
                            {line.label} <strong>{lastOf(line) === null ? "–" : show(lastOf(line)!)}</strong>
                        </li>
                    ))}
                    {limit !== undefined && (
                        <li>
                            <span class="swatch limit" aria-hidden="true" />
                            limit <strong>{show(limit)}</strong>
                        </li>
                    )}
                </ul>
            </figcaption>
            <div ref={place} role="img" aria-label={summary(label, times, lines, show, limit)} />
        </figure>
    );
}

function dataOf({ times, lines, limit }: Pick<Props, "times" | "lines" | "limit">): uPlot.AlignedData {
    // A limit is a line from the beginning, also while there is one value only.
    const start = times.length === 1 ? [times[0]! - LEAST_SPAN_S] : [];
    const data: (readonly (number | null)[])[] = [
        [...start, ...times],
        ...lines.map((line) => [...start.map(() => null), ...line.values]),
    ];
    if (limit !== undefined) data.push([...start, ...times].map(() => limit));
    return data as uPlot.AlignedData;
}

function describePlot(
    element: HTMLElement,
    lines: readonly Line[],
    show: (value: number) => string,
    limited: boolean,
    binary: boolean,
    height: number,
    limitNow: () => number | undefined,
): uPlot.Options {
    const axis = {
        stroke: colourOf(element, "--faint"),
        grid: { stroke: colourOf(element, "--line"), width: 1 },
        ticks: { show: false },
    };
    const series: uPlot.Series[] = lines.map((line, at) => ({
        label: line.label,
        stroke: colourOf(element, COLOURS[at % COLOURS.length]!),
        width: 1.5,
        points: { show: (plot: uPlot) => plot.data[0].length <= 2 },
    }));
    if (limited)
        series.push({
            label: "limit",
            stroke: colourOf(element, "--bad"),
            width: 1,
            dash: [6, 4],
            points: { show: false },
        });
    return {
        width: element.clientWidth,
        height,
        padding: [null, 32, null, null], // the last time stands half beside the plot
        legend: { show: false },
        cursor: { drag: { setScale: false, x: false, y: false }, points: { size: 6 } },
        series: [{}, ...series],
        axes: [
            {
                ...axis,
                space: 80,
                size: 30,
                values: (_plot, at) => at.map((time) => new Date(time * 1000).toLocaleTimeString([], timeParts(at))),
            },
            {
                ...axis,
                size: 76,
                values: (_plot, at) => at.map(show),
                splits: (_plot, _axis, from, to) => roundSteps(from, to, binary),
            },
        ],
        scales: {
            x: { time: true, range: (_plot, from, to) => [Math.min(from, to - LEAST_SPAN_S), to] },
            y: { range: (_plot, _from, to) => [0, 1.08 * Math.max(to ?? 0, limitNow() ?? 0) || (binary ? 1024 : 1)] },
        },
    };
}

function timeParts(times: readonly number[]): Intl.DateTimeFormatOptions {
    const step = times.length > 1 ? times[1]! - times[0]! : 0;
    return { hour: "2-digit", minute: "2-digit", second: step >= 60 ? undefined : "2-digit", hourCycle: "h23" };
}

/** A colour variable as the canvas understands it, in the theme that is on now. */
function colourOf(element: HTMLElement, name: string): string {
    const probe = document.createElement("span");
    probe.style.color = `var(${name})`;
    element.append(probe);
    const colour = getComputedStyle(probe).color;
    probe.remove();
    return colour;
}

function lastOf(line: Line): number | null {
    return line.values[line.values.length - 1] ?? null;
}

function summary(
    label: string,
    times: readonly number[],
    lines: readonly Line[],
    show: (value: number) => string,
    limit?: number,
): string {
    if (times.length === 0) return `${label}: nothing is known yet`;
    const spanS = Math.round(times[times.length - 1]! - times[0]!);
    const parts = lines.map((line) => {
        const known = line.values.filter((value): value is number => value !== null);
        if (known.length === 0) return `${line.label} not known`;
        const most = known.reduce((one, other) => Math.max(one, other));
        return `${line.label} ${show(known[known.length - 1]!)} now, ${show(most)} at most`;
    });
    const bound = limit === undefined ? "" : `; the limit is ${show(limit)}`;
    return `${label} over ${spanS} seconds: ${parts.join(", ")}${bound}`;
}
