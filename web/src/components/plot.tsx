// A plot of values over time, drawn by uPlot.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";

import { linearTicks } from "../lib/ticks";
import { alignColumns, lastValue, MIN_SPAN_S, type PlotData, summarizePlot } from "./plot_data";

/** A plot has at most four lines, because there are four colours. */
interface Props extends PlotData {
    label: string;
    /** Formats a value with its unit. */
    format: (value: number) => string;
    /** The values are bytes: ticks stand at powers of two. */
    binary?: boolean;
    height?: number;
}

const COLOURS = ["--accent", "--warn", "--good", "--bad"];

export function Plot({ label, times, lines, limit, format, binary = false, height = 170 }: Props) {
    const container = useRef<HTMLDivElement>(null);
    const plot = useRef<uPlot | null>(null);
    const data: PlotData = { times, lines, limit };
    const latest = useRef(data);
    latest.current = data;
    const shape = lines.map((line) => line.label).join("\n") + (limit === undefined ? "" : "\nlimit");

    useEffect(() => {
        const element = container.current!;
        const darkMode = matchMedia("(prefers-color-scheme: dark)");
        function draw() {
            plot.current?.destroy();
            const options = plotOptions(element, () => latest.current, { format, binary, height });
            plot.current = new uPlot(options, alignColumns(latest.current) as uPlot.AlignedData, element);
        }
        draw();
        const observer = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height }));
        observer.observe(element);
        darkMode.addEventListener("change", draw);
        return () => {
            observer.disconnect();
            darkMode.removeEventListener("change", draw);
            plot.current?.destroy();
            plot.current = null;
        };
    }, [shape, height]);
    useEffect(() => plot.current?.setData(alignColumns(latest.current) as uPlot.AlignedData), [times, lines, limit]);

    return (
        <figure class="plot card">
            <figcaption>
                <h3>{label}</h3>
                <ul class="legend">
                    {lines.map((line, index) => {
                        const last = lastValue(line);
                        return (
                            <li key={line.label}>
                                <span class={`swatch colour-${index}`} aria-hidden="true" />
                                {line.label} <strong>{last === null ? "–" : format(last)}</strong>
                            </li>
                        );
                    })}
                    {limit !== undefined && (
                        <li>
                            <span class="swatch limit" aria-hidden="true" />
                            limit <strong>{format(limit)}</strong>
                        </li>
                    )}
                </ul>
            </figcaption>
            <div ref={container} role="img" aria-label={summarizePlot(label, data, format)} />
        </figure>
    );
}

function plotOptions(
    element: HTMLElement,
    latest: () => PlotData,
    { format, binary, height }: { format: (value: number) => string; binary: boolean; height: number },
): uPlot.Options {
    const axis = {
        stroke: resolveColour(element, "--faint"),
        grid: { stroke: resolveColour(element, "--line"), width: 1 },
        ticks: { show: false },
    };
    const { lines, limit } = latest();
    const series: uPlot.Series[] = lines.map((line, index) => ({
        label: line.label,
        stroke: resolveColour(element, COLOURS[index % COLOURS.length]!),
        width: 1.5,
        points: { show: (plot: uPlot) => plot.data[0].length <= 2 },
    }));
    if (limit !== undefined) {
        const stroke = resolveColour(element, "--bad");
        series.push({ label: "limit", stroke, width: 1, dash: [6, 4], points: { show: false } });
    }
    return {
        width: element.clientWidth,
        height,
        padding: [null, 32, null, null], // room for the half of the last time that reaches beyond the plot
        legend: { show: false },
        cursor: { drag: { setScale: false, x: false, y: false }, points: { size: 6 } },
        series: [{}, ...series],
        axes: [
            { ...axis, space: 80, size: 30, values: (_plot, times) => times.map((time) => formatTick(time, times)) },
            {
                ...axis,
                size: 76,
                values: (_plot, values) => values.map(format),
                splits: (_plot, _axis, from, to) => linearTicks(from, to, binary),
            },
        ],
        scales: {
            x: { time: true, range: (_plot, from, to) => [Math.min(from, to - MIN_SPAN_S), to] },
            y: {
                range: (_plot, _from, to) => [0, 1.08 * Math.max(to ?? 0, latest().limit ?? 0) || (binary ? 1024 : 1)],
            },
        },
    };
}

function formatTick(time: number, times: readonly number[]): string {
    const step = times.length > 1 ? times[1]! - times[0]! : 0;
    return new Date(time * 1000).toLocaleTimeString([], {
        hour: "2-digit",
        minute: "2-digit",
        second: step >= 60 ? undefined : "2-digit",
        hourCycle: "h23",
    });
}

/** Returns the value of a CSS colour variable in the current theme, which a canvas needs. */
function resolveColour(element: HTMLElement, name: string): string {
    const probe = document.createElement("span");
    probe.style.color = `var(${name})`;
    element.append(probe);
    const colour = getComputedStyle(probe).color;
    probe.remove();
    return colour;
}
