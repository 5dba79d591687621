// Draws charts as SVG from the data of a figure: line, scatter, bar, pie, box and whisker, and several of them in one.

import type { ComponentChildren } from "preact";

import { truncate } from "../lib/format";
import { linearTicks, logTicks } from "../lib/ticks";
import {
    canDraw,
    formatAxisTime,
    formatNumber,
    isObject,
    linearScale,
    MAX_POINTS,
    type Point,
    type Range,
    rangeOf,
    seriesName,
    thinPoints,
    toNumber,
    toPoints,
    toText,
    type Values,
} from "./chart_data";

const WIDTH = 640;
const HEIGHT = 360;
const LEFT = 64;
const RIGHT = 16;
const TOP = 12;
const BOTTOM = 48;
const MAX_ELEMENTS = 200;
const MAX_CHARTS = 16;
const COLOURS = 6;

export function Chart({ chart, depth = 0 }: { chart: Values; depth?: number }) {
    const elements = (chart.elements as unknown[]).filter(isObject);
    if (chart.type === "superchart") {
        return (
            <figure class="chart">
                {toText(chart.title) && <figcaption>{toText(chart.title)}</figcaption>}
                <div class="charts">
                    {elements
                        .slice(0, MAX_CHARTS)
                        .map((one, index) =>
                            canDraw(one) && depth < 1 ? <Chart key={index} chart={one} depth={depth + 1} /> : null,
                        )}
                </div>
            </figure>
        );
    }
    const draw = { line: drawLines, scatter: drawScatter, bar: drawBars, pie: drawPie, box_and_whisker: drawBoxes }[
        String(chart.type)
    ]!;
    const { picture, names } = draw(chart, elements.slice(0, MAX_ELEMENTS));
    const title = toText(chart.title) || `${String(chart.type).replaceAll("_", " ")} chart`;
    return (
        <figure class="chart">
            {toText(chart.title) && <figcaption>{toText(chart.title)}</figcaption>}
            <svg
                viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
                role="img"
                aria-label={names.length ? `${title}: ${names.slice(0, 20).join(", ")}` : title}
            >
                {picture}
            </svg>
            {names.length > 1 && (
                <ul class="legend">
                    {names.slice(0, 20).map((name, index) => (
                        <li key={index}>
                            <span class={`swatch series-${index % COLOURS}`} aria-hidden="true" />
                            {name}
                        </li>
                    ))}
                </ul>
            )}
        </figure>
    );
}

interface Drawing {
    /** SVG elements. */
    picture: ComponentChildren;
    /** The names of the series, for the legend. */
    names: string[];
}

// -- types of charts

function drawLines(chart: Values, elements: readonly Values[]): Drawing {
    return drawOverAxes(chart, elements, (points, index, x, y) => {
        const steps = thinPoints(points, elements.length).map(([px, py], index, all) => {
            const broken = index === 0 || all[index - 1]![1] === null;
            return py === null ? "" : `${broken ? "M" : "L"}${x(px).toFixed(1)} ${y(py).toFixed(1)}`;
        });
        const dots = points.length === 1 && points[0]![1] !== null;
        return dots ? (
            <circle
                key={index}
                class={`series-${index % COLOURS}`}
                cx={x(points[0]![0])}
                cy={y(points[0]![1]!)}
                r={3.5}
            />
        ) : (
            <path key={index} class={`stroke series-${index % COLOURS}`} d={steps.join("")} />
        );
    });
}

function drawScatter(chart: Values, elements: readonly Values[]): Drawing {
    return drawOverAxes(chart, elements, (points, index, x, y) => (
        <g key={index} class={`cloud series-${index % COLOURS}`}>
            {thinPoints(points, elements.length).map(([px, py], index) =>
                py === null ? null : <circle key={index} cx={x(px).toFixed(1)} cy={y(py).toFixed(1)} r={3.5} />,
            )}
        </g>
    ));
}

function drawBars(chart: Values, elements: readonly Values[]): Drawing {
    const groups = [...new Set(elements.map((one) => toText(one.group)))];
    const labels = [...new Set(elements.map((one) => toText(one.label)))];
    const values = elements.map((one) => toNumber(one.value) ?? 0);
    const range = rangeOf([...values, 0]);
    const y = linearScale(range, HEIGHT - BOTTOM, TOP);
    const room = (WIDTH - LEFT - RIGHT) / Math.max(1, labels.length);
    const width = (room * 0.8) / Math.max(1, groups.length);
    return {
        names: groups.length > 1 ? groups : [],
        picture: (
            <>
                <ValueAxis range={range} y={y} label={toText(chart.y_label)} />
                <CategoryAxis names={labels} room={room} label={toText(chart.x_label)} />
                {elements.map((one, index) => {
                    const group = groups.indexOf(toText(one.group));
                    const left = LEFT + labels.indexOf(toText(one.label)) * room + room * 0.1 + group * width;
                    const top = Math.min(y(values[index]!), y(0));
                    return (
                        <rect
                            key={index}
                            class={`series-${group % COLOURS}`}
                            x={left}
                            y={top}
                            width={Math.max(1, width - 1)}
                            height={Math.abs(y(values[index]!) - y(0))}
                        >
                            <title>{`${toText(one.label)}: ${formatNumber(values[index]!)}`}</title>
                        </rect>
                    );
                })}
            </>
        ),
    };
}

function drawPie(_chart: Values, elements: readonly Values[]): Drawing {
    const angles = elements.map((one) => Math.max(0, toNumber(one.angle) ?? 0));
    const all = angles.reduce((sum, angle) => sum + angle, 0) || 1;
    const names = elements.map(
        (one, index) => `${toText(one.label) || `Slice ${index + 1}`} ${Math.round((100 * angles[index]!) / all)} %`,
    );
    const radius = HEIGHT / 2 - TOP;
    let turn = 0;
    const point = (part: number) => {
        const angle = 2 * Math.PI * part - Math.PI / 2;
        return `${(WIDTH / 2 + radius * Math.cos(angle)).toFixed(2)} ${(HEIGHT / 2 + radius * Math.sin(angle)).toFixed(2)}`;
    };
    const picture = angles.map((angle, index) => {
        const from = turn / all;
        turn += angle;
        const style = `slice series-${index % COLOURS}`;
        if (angle === all) return <circle key={index} class={style} cx={WIDTH / 2} cy={HEIGHT / 2} r={radius} />;
        return (
            <path
                key={index}
                class={style}
                d={`M${WIDTH / 2} ${HEIGHT / 2}L${point(from)}A${radius} ${radius} 0 ${angle / all > 0.5 ? 1 : 0} 1 ${point(turn / all)}Z`}
            >
                <title>{names[index]}</title>
            </path>
        );
    });
    return { picture, names };
}

function drawBoxes(chart: Values, elements: readonly Values[]): Drawing {
    const boxes = elements.map((one) => {
        const [low, first, median, third, high] = ["min", "first_quartile", "median", "third_quartile", "max"].map(
            (name) => toNumber(one[name]) ?? 0,
        ) as [number, number, number, number, number];
        const outliers = (Array.isArray(one.outliers) ? one.outliers : [])
            .slice(0, 500)
            .map((value) => toNumber(value))
            .filter((value) => value !== null);
        return { label: toText(one.label), low, first, median, third, high, outliers };
    });
    const range = rangeOf(boxes.flatMap((box) => [box.low, box.high, ...box.outliers]));
    const y = linearScale(range, HEIGHT - BOTTOM, TOP);
    const room = (WIDTH - LEFT - RIGHT) / Math.max(1, boxes.length);
    const half = Math.min(40, room * 0.3);
    return {
        names: [],
        picture: (
            <>
                <ValueAxis range={range} y={y} label={toText(chart.y_label)} />
                <CategoryAxis names={boxes.map((box) => box.label)} room={room} label={toText(chart.x_label)} />
                {boxes.map((box, index) => {
                    const x = LEFT + room * (index + 0.5);
                    return (
                        <g key={index} class={`box series-${index % COLOURS}`}>
                            <title>{`${box.label}: ${formatNumber(box.low)} to ${formatNumber(box.high)}, median ${formatNumber(box.median)}`}</title>
                            <path
                                class="stroke"
                                d={`M${x} ${y(box.low)}V${y(box.first)}M${x} ${y(box.third)}V${y(box.high)}M${x - half / 2} ${y(box.low)}H${x + half / 2}M${x - half / 2} ${y(box.high)}H${x + half / 2}`}
                            />
                            <rect
                                class="stroke"
                                x={x - half}
                                y={y(box.third)}
                                width={2 * half}
                                height={Math.max(0, y(box.first) - y(box.third))}
                            />
                            <path class="stroke median" d={`M${x - half} ${y(box.median)}H${x + half}`} />
                            {box.outliers.map((value, index) => (
                                <circle key={index} cx={x} cy={y(value)} r={3} />
                            ))}
                        </g>
                    );
                })}
            </>
        ),
    };
}

// -- axes

/** Draws the points of one series. */
type SeriesRenderer = (
    points: readonly Point[],
    index: number,
    x: (value: number) => number,
    y: (value: number) => number,
) => ComponentChildren;

function drawOverAxes(chart: Values, elements: readonly Values[], renderSeries: SeriesRenderer): Drawing {
    const isTime = chart.x_scale === "datetime";
    const logX = chart.x_scale === "log";
    const logY = chart.y_scale === "log";
    const categories = (
        chart.x_scale === "categorical" && Array.isArray(chart.x_tick_labels) ? chart.x_tick_labels : []
    )
        .slice(0, MAX_POINTS)
        .map(toText);
    const series = elements.map((one) => toPoints(one.points, { isTime, isLog: logX, categories }, logY));
    const xRange = rangeOf(series.flatMap((points) => points.map(([px]) => px)));
    const yRange = rangeOf(series.flatMap((points) => points.map(([, py]) => py).filter((py) => py !== null)));
    const x = linearScale(xRange, LEFT, WIDTH - RIGHT);
    const y = linearScale(yRange, HEIGHT - BOTTOM, TOP);
    const formatX = (value: number) => {
        if (categories.length) return categories[value] ?? "";
        return isTime ? formatAxisTime(value, xRange) : formatNumber(logX ? 10 ** value : value);
    };
    return {
        names: series.length > 1 ? elements.map((one, index) => seriesName(one.label, index)) : [],
        picture: (
            <>
                <ValueAxis range={yRange} y={y} label={toText(chart.y_label)} log={logY} />
                {(categories.length
                    ? categories.slice(0, 30).map((_, index) => index)
                    : (logX ? logTicks : linearTicks)(xRange.from, xRange.to)
                ).map((value) => (
                    <g key={value}>
                        <path class="grid-line" d={`M${x(value)} ${TOP}V${HEIGHT - BOTTOM}`} />
                        <text x={x(value)} y={HEIGHT - BOTTOM + 16} text-anchor="middle">
                            {truncate(formatX(value), 14)}
                        </text>
                    </g>
                ))}
                <text x={(LEFT + WIDTH - RIGHT) / 2} y={HEIGHT - 8} text-anchor="middle">
                    {truncate(toText(chart.x_label), 80)}
                </text>
                {series.map((points, index) => renderSeries(points, index, x, y))}
            </>
        ),
    };
}

function ValueAxis({
    range,
    y,
    label,
    log = false,
}: {
    range: Range;
    y: (value: number) => number;
    label: string;
    log?: boolean;
}) {
    return (
        <>
            {(log ? logTicks : linearTicks)(range.from, range.to).map((value) => (
                <g key={value}>
                    <path class="grid-line" d={`M${LEFT} ${y(value)}H${WIDTH - RIGHT}`} />
                    <text x={LEFT - 6} y={y(value) + 4} text-anchor="end">
                        {truncate(formatNumber(log ? 10 ** value : value), 10)}
                    </text>
                </g>
            ))}
            <text transform={`translate(12 ${(HEIGHT - BOTTOM + TOP) / 2}) rotate(-90)`} text-anchor="middle">
                {truncate(label, 40)}
            </text>
        </>
    );
}

function CategoryAxis({ names, room, label }: { names: readonly string[]; room: number; label: string }) {
    const every = Math.ceil(names.length / 20);
    return (
        <>
            {names.map((name, index) =>
                index % every ? null : (
                    <text key={index} x={LEFT + room * (index + 0.5)} y={HEIGHT - BOTTOM + 16} text-anchor="middle">
                        {truncate(name, Math.max(3, Math.floor((room * every) / 7)))}
                    </text>
                ),
            )}
            <text x={(LEFT + WIDTH - RIGHT) / 2} y={HEIGHT - 8} text-anchor="middle">
                {truncate(label, 80)}
            </text>
        </>
    );
}
