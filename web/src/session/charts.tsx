// Charts drawn as SVG elements from the data that a figure was made of: line, scatter, bar, pie, box and whisker, and
// several of them. All of it is a stranger's data: what is no number is left out, and labels are text.

import type { ComponentChildren } from "preact";

import { logSteps, roundSteps } from "../parts/steps";

type Values = Record<string, unknown>;

const WIDTH = 640;
const HEIGHT = 360;
const LEFT = 64;
const RIGHT = 16;
const TOP = 12;
const BOTTOM = 48;
const MOST_POINTS = 4000; // of all lines or clouds of a chart: more cannot be told apart
const MOST_NUMBER = 1e300; // the distance between two is a number too
const MOST_TIME = 8.64e15; // that a date can have
const MOST_ELEMENTS = 200;
const MOST_CHARTS = 16;
const COLOURS = 6;
const KINDS = ["line", "scatter", "bar", "pie", "box_and_whisker", "superchart"];

export function canDraw(chart: unknown): boolean {
    return (
        isObject(chart) &&
        typeof chart.type === "string" &&
        KINDS.includes(chart.type) &&
        Array.isArray(chart.elements) &&
        chart.elements.length > 0
    );
}

export function Chart({ chart, depth = 0 }: { chart: Values; depth?: number }) {
    const elements = (chart.elements as unknown[]).filter(isObject);
    if (chart.type === "superchart") {
        return (
            <figure class="chart">
                {textOf(chart.title) && <figcaption>{textOf(chart.title)}</figcaption>}
                <div class="charts">
                    {elements
                        .slice(0, MOST_CHARTS)
                        .map((one, at) =>
                            canDraw(one) && depth < 1 ? <Chart key={at} chart={one} depth={depth + 1} /> : null,
                        )}
                </div>
            </figure>
        );
    }
    const draw = { line: Lines, scatter: Clouds, bar: Bars, pie: Slices, box_and_whisker: Boxes }[String(chart.type)]!;
    const { picture, names } = draw(chart, elements.slice(0, MOST_ELEMENTS));
    const title = textOf(chart.title) || `${String(chart.type).replaceAll("_", " ")} chart`;
    return (
        <figure class="chart">
            {textOf(chart.title) && <figcaption>{textOf(chart.title)}</figcaption>}
            <svg
                viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
                role="img"
                aria-label={names.length ? `${title}: ${names.slice(0, 20).join(", ")}` : title}
            >
                {picture}
            </svg>
            {names.length > 1 && (
                <ul class="legend">
                    {names.slice(0, 20).map((name, at) => (
                        <li key={at}>
                            <span class={`swatch series-${at % COLOURS}`} aria-hidden="true" />
                            {name}
                        </li>
                    ))}
                </ul>
            )}
        </figure>
    );
}

interface Drawn {
    picture: ComponentChildren;
    names: string[];
}

interface Span {
    from: number;
    to: number;
}

// -- kinds

function Lines(chart: Values, elements: readonly Values[]): Drawn {
    return overAxes(chart, elements, (points, at, x, y) => {
        const steps = thinned(points, elements.length).map(([px, py], index, all) => {
            const broken = index === 0 || all[index - 1]![1] === null;
            return py === null ? "" : `${broken ? "M" : "L"}${x(px).toFixed(1)} ${y(py).toFixed(1)}`;
        });
        const dots = points.length === 1 && points[0]![1] !== null;
        return dots ? (
            <circle key={at} class={`series-${at % COLOURS}`} cx={x(points[0]![0])} cy={y(points[0]![1]!)} r={3.5} />
        ) : (
            <path key={at} class={`stroke series-${at % COLOURS}`} d={steps.join("")} />
        );
    });
}

function Clouds(chart: Values, elements: readonly Values[]): Drawn {
    return overAxes(chart, elements, (points, at, x, y) => (
        <g key={at} class={`cloud series-${at % COLOURS}`}>
            {thinned(points, elements.length).map(([px, py], index) =>
                py === null ? null : <circle key={index} cx={x(px).toFixed(1)} cy={y(py).toFixed(1)} r={3.5} />,
            )}
        </g>
    ));
}

function Bars(chart: Values, elements: readonly Values[]): Drawn {
    const groups = [...new Set(elements.map((one) => textOf(one.group)))];
    const labels = [...new Set(elements.map((one) => textOf(one.label)))];
    const values = elements.map((one) => numberOf(one.value, false) ?? 0);
    const span = reach([...values, 0]);
    const y = scale(span, HEIGHT - BOTTOM, TOP);
    const room = (WIDTH - LEFT - RIGHT) / Math.max(1, labels.length);
    const width = (room * 0.8) / Math.max(1, groups.length);
    return {
        names: groups.length > 1 ? groups : [],
        picture: (
            <>
                <ValueAxis span={span} y={y} label={textOf(chart.y_label)} />
                <NameAxis names={labels} room={room} label={textOf(chart.x_label)} />
                {elements.map((one, at) => {
                    const group = groups.indexOf(textOf(one.group));
                    const left = LEFT + labels.indexOf(textOf(one.label)) * room + room * 0.1 + group * width;
                    const top = Math.min(y(values[at]!), y(0));
                    return (
                        <rect
                            key={at}
                            class={`series-${group % COLOURS}`}
                            x={left}
                            y={top}
                            width={Math.max(1, width - 1)}
                            height={Math.abs(y(values[at]!) - y(0))}
                        >
                            <title>{`${textOf(one.label)}: ${shown(values[at]!)}`}</title>
                        </rect>
                    );
                })}
            </>
        ),
    };
}

function Slices(_chart: Values, elements: readonly Values[]): Drawn {
    const angles = elements.map((one) => Math.max(0, numberOf(one.angle, false) ?? 0));
    const all = angles.reduce((sum, angle) => sum + angle, 0) || 1;
    const names = elements.map(
        (one, at) => `${textOf(one.label) || `Slice ${at + 1}`} ${Math.round((100 * angles[at]!) / all)} %`,
    );
    const radius = HEIGHT / 2 - TOP;
    let turn = 0;
    const point = (part: number) => {
        const angle = 2 * Math.PI * part - Math.PI / 2;
        return `${(WIDTH / 2 + radius * Math.cos(angle)).toFixed(2)} ${(HEIGHT / 2 + radius * Math.sin(angle)).toFixed(2)}`;
    };
    const picture = angles.map((angle, at) => {
        const from = turn / all;
        turn += angle;
        const style = `slice series-${at % COLOURS}`;
        if (angle === all) return <circle key={at} class={style} cx={WIDTH / 2} cy={HEIGHT / 2} r={radius} />;
        return (
            <path
                key={at}
                class={style}
                d={`M${WIDTH / 2} ${HEIGHT / 2}L${point(from)}A${radius} ${radius} 0 ${angle / all > 0.5 ? 1 : 0} 1 ${point(turn / all)}Z`}
            >
                <title>{names[at]}</title>
            </path>
        );
    });
    return { picture, names };
}

function Boxes(chart: Values, elements: readonly Values[]): Drawn {
    const boxes = elements.map((one) => {
        const [low, first, median, third, high] = ["min", "first_quartile", "median", "third_quartile", "max"].map(
            (name) => numberOf(one[name], false) ?? 0,
        ) as [number, number, number, number, number];
        const outliers = (Array.isArray(one.outliers) ? one.outliers : [])
            .slice(0, 500)
            .map((value) => numberOf(value, false))
            .filter((value) => value !== null);
        return { label: textOf(one.label), low, first, median, third, high, outliers };
    });
    const span = reach(boxes.flatMap((box) => [box.low, box.high, ...box.outliers]));
    const y = scale(span, HEIGHT - BOTTOM, TOP);
    const room = (WIDTH - LEFT - RIGHT) / Math.max(1, boxes.length);
    const half = Math.min(40, room * 0.3);
    return {
        names: [],
        picture: (
            <>
                <ValueAxis span={span} y={y} label={textOf(chart.y_label)} />
                <NameAxis names={boxes.map((box) => box.label)} room={room} label={textOf(chart.x_label)} />
                {boxes.map((box, at) => {
                    const x = LEFT + room * (at + 0.5);
                    return (
                        <g key={at} class={`box series-${at % COLOURS}`}>
                            <title>{`${box.label}: ${shown(box.low)} to ${shown(box.high)}, median ${shown(box.median)}`}</title>
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

type Point = [number, number | null];
type Mark = (
    points: readonly Point[],
    at: number,
    x: (value: number) => number,
    y: (value: number) => number,
) => ComponentChildren;

function overAxes(chart: Values, elements: readonly Values[], mark: Mark): Drawn {
    const asTimes = chart.x_scale === "datetime";
    const logX = chart.x_scale === "log";
    const logY = chart.y_scale === "log";
    const names = (chart.x_scale === "categorical" && Array.isArray(chart.x_tick_labels) ? chart.x_tick_labels : [])
        .slice(0, MOST_POINTS)
        .map(textOf);
    const series = elements.map((one) => pointsOf(one.points, asTimes, names, logX, logY));
    const spanX = reach(series.flatMap((points) => points.map(([px]) => px)));
    const spanY = reach(series.flatMap((points) => points.map(([, py]) => py).filter((py) => py !== null)));
    const x = scale(spanX, LEFT, WIDTH - RIGHT);
    const y = scale(spanY, HEIGHT - BOTTOM, TOP);
    const showX = (value: number) => {
        if (names.length) return names[value] ?? "";
        return asTimes ? shownTime(value, spanX) : shown(logX ? 10 ** value : value);
    };
    return {
        names: series.length > 1 ? elements.map((one, at) => nameOf(one.label, at)) : [],
        picture: (
            <>
                <ValueAxis span={spanY} y={y} label={textOf(chart.y_label)} log={logY} />
                {(names.length
                    ? names.slice(0, 30).map((_, at) => at)
                    : (logX ? logSteps : roundSteps)(spanX.from, spanX.to)
                ).map((value) => (
                    <g key={value}>
                        <path class="grid-line" d={`M${x(value)} ${TOP}V${HEIGHT - BOTTOM}`} />
                        <text x={x(value)} y={HEIGHT - BOTTOM + 16} text-anchor="middle">
                            {cut(showX(value), 14)}
                        </text>
                    </g>
                ))}
                <text x={(LEFT + WIDTH - RIGHT) / 2} y={HEIGHT - 8} text-anchor="middle">
                    {cut(textOf(chart.x_label), 80)}
                </text>
                {series.map((points, at) => mark(points, at, x, y))}
            </>
        ),
    };
}

function ValueAxis({
    span,
    y,
    label,
    log = false,
}: {
    span: Span;
    y: (value: number) => number;
    label: string;
    log?: boolean;
}) {
    return (
        <>
            {(log ? logSteps : roundSteps)(span.from, span.to).map((value) => (
                <g key={value}>
                    <path class="grid-line" d={`M${LEFT} ${y(value)}H${WIDTH - RIGHT}`} />
                    <text x={LEFT - 6} y={y(value) + 4} text-anchor="end">
                        {cut(shown(log ? 10 ** value : value), 10)}
                    </text>
                </g>
            ))}
            <text transform={`translate(12 ${(HEIGHT - BOTTOM + TOP) / 2}) rotate(-90)`} text-anchor="middle">
                {cut(label, 40)}
            </text>
        </>
    );
}

function NameAxis({ names, room, label }: { names: readonly string[]; room: number; label: string }) {
    const every = Math.ceil(names.length / 20);
    return (
        <>
            {names.map((name, at) =>
                at % every ? null : (
                    <text key={at} x={LEFT + room * (at + 0.5)} y={HEIGHT - BOTTOM + 16} text-anchor="middle">
                        {cut(name, Math.max(3, Math.floor((room * every) / 7)))}
                    </text>
                ),
            )}
            <text x={(LEFT + WIDTH - RIGHT) / 2} y={HEIGHT - 8} text-anchor="middle">
                {cut(label, 80)}
            </text>
        </>
    );
}

// -- values

function isObject(value: unknown): value is Values {
    return typeof value === "object" && value !== null && !Array.isArray(value);
}

const textOf = (value: unknown): string =>
    typeof value === "string" || typeof value === "number" ? String(value) : "";
const cut = (text: string, most: number): string => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

/** Labels that the library made up, such as _child0, tell nobody anything. */
function nameOf(label: unknown, at: number): string {
    const text = textOf(label);
    return text && !text.startsWith("_") ? text : `Series ${at + 1}`;
}

function numberOf(value: unknown, asTime: boolean): number | null {
    const number = typeof value === "string" ? (asTime ? Date.parse(value) : Number(value)) : value;
    return typeof number === "number" && Math.abs(number) <= (asTime ? MOST_TIME : MOST_NUMBER) ? number : null;
}

function pointsOf(values: unknown, asTimes: boolean, names: readonly string[], logX: boolean, logY: boolean): Point[] {
    const points: Point[] = [];
    const places = new Map(names.map((name, at) => [name, at]));
    for (const one of Array.isArray(values) ? values : []) {
        if (!Array.isArray(one)) continue;
        const named = typeof one[0] === "string" ? places.get(one[0]) : undefined;
        const x = onScale(named ?? numberOf(one[0], asTimes), logX);
        if (x !== null) points.push([x, onScale(numberOf(one[1], false), logY)]);
    }
    return points;
}

function onScale(value: number | null, log: boolean): number | null {
    if (value === null || !log) return value;
    return value > 0 ? Math.log10(value) : null;
}

/** As many of the points as one of `count` series may have. */
function thinned(points: readonly Point[], count: number): readonly Point[] {
    const step = Math.ceil((points.length * count) / MOST_POINTS);
    return step <= 1 ? points : points.filter((_, at) => at % step === 0 || at === points.length - 1);
}

function reach(values: readonly number[]): Span {
    let from = Infinity;
    let to = -Infinity;
    for (const value of values) {
        from = Math.min(from, value);
        to = Math.max(to, value);
    }
    if (from > to) return { from: 0, to: 1 };
    const margin = (to - from) * 0.05 || Math.abs(to) * 0.1 || 1;
    return { from: from === 0 ? 0 : from - margin, to: to === 0 && from < 0 ? 0 : to + margin };
}

function scale({ from, to }: Span, start: number, end: number): (value: number) => number {
    return (value) => start + ((value - from) / (to - from)) * (end - start);
}

function shown(value: number): string {
    return Math.abs(value) >= 1e6 || (value !== 0 && Math.abs(value) < 1e-3)
        ? value.toExponential(1)
        : String(Number(value.toPrecision(4)));
}

function shownTime(ms: number, span: Span): string {
    const date = new Date(Math.max(-MOST_TIME, Math.min(ms, MOST_TIME))); // steps may lie beyond the points
    return span.to - span.from > 2 * 86_400_000 ? date.toISOString().slice(0, 10) : date.toISOString().slice(11, 19);
}
