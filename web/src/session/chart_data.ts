// Reads the data of charts that code in a sandbox made. None of it can be trusted: values that are not numbers are left
// out, and labels are plain text.

export type Values = Record<string, unknown>;
/** A position on both axes. The second is null where a line is interrupted. */
export type Point = [number, number | null];

export interface Range {
    from: number;
    to: number;
}

export interface AxisOptions {
    isTime: boolean;
    isLog: boolean;
    /** The names on the axis; empty unless it is categorical. */
    categories: readonly string[];
}

export const MAX_POINTS = 4000; // of all series of a chart: more cannot be told apart
const MAX_NUMBER = 1e300; // so that the difference of two is a number, too
const MAX_TIME = 8.64e15; // the largest that a Date can hold
const CHART_TYPES = ["line", "scatter", "bar", "pie", "box_and_whisker", "superchart"];
const TWO_DAYS_MS = 2 * 86_400_000;

export function canDraw(chart: unknown): chart is Values {
    return (
        isObject(chart) &&
        typeof chart.type === "string" &&
        CHART_TYPES.includes(chart.type) &&
        Array.isArray(chart.elements) &&
        chart.elements.length > 0
    );
}

export function isObject(value: unknown): value is Values {
    return typeof value === "object" && value !== null && !Array.isArray(value);
}

export function toText(value: unknown): string {
    return typeof value === "string" || typeof value === "number" ? String(value) : "";
}

/** Names a series by its number if its label is one that a library made up, such as _child0. */
export function seriesName(label: unknown, index: number): string {
    const text = toText(label);
    return text && !text.startsWith("_") ? text : `Series ${index + 1}`;
}

export function toNumber(value: unknown, isTime = false): number | null {
    const number = typeof value === "string" ? (isTime ? Date.parse(value) : Number(value)) : value;
    return typeof number === "number" && Math.abs(number) <= (isTime ? MAX_TIME : MAX_NUMBER) ? number : null;
}

export function toPoints(values: unknown, xAxis: AxisOptions, isLogY: boolean): Point[] {
    const points: Point[] = [];
    const positions = new Map(xAxis.categories.map((name, index) => [name, index]));
    for (const pair of Array.isArray(values) ? values : []) {
        if (!Array.isArray(pair)) continue;
        const position = typeof pair[0] === "string" ? positions.get(pair[0]) : undefined;
        const x = onScale(position ?? toNumber(pair[0], xAxis.isTime), xAxis.isLog);
        if (x !== null) points.push([x, onScale(toNumber(pair[1]), isLogY)]);
    }
    return points;
}

function onScale(value: number | null, isLog: boolean): number | null {
    if (value === null || !isLog) return value;
    return value > 0 ? Math.log10(value) : null;
}

/** Drops points evenly, until `seriesCount` series like this one have no more than MAX_POINTS. */
export function thinPoints(points: readonly Point[], seriesCount: number): readonly Point[] {
    const step = Math.ceil((points.length * seriesCount) / MAX_POINTS);
    return step <= 1 ? points : points.filter((_, index) => index % step === 0 || index === points.length - 1);
}

/** Returns a range that contains all values, with a margin on each side unless that is zero. */
export function rangeOf(values: readonly number[]): Range {
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

/** Returns a function that maps values of the range to coordinates from `start` to `end`. */
export function linearScale({ from, to }: Range, start: number, end: number): (value: number) => number {
    return (value) => start + ((value - from) / (to - from)) * (end - start);
}

export function formatNumber(value: number): string {
    const isExtreme = Math.abs(value) >= 1e6 || (value !== 0 && Math.abs(value) < 1e-3);
    return isExtreme ? value.toExponential(1) : String(Number(value.toPrecision(4)));
}

/** Formats a time in milliseconds as a date on a long axis, and as a time of day on a short one. */
export function formatAxisTime(ms: number, range: Range): string {
    const date = new Date(Math.max(-MAX_TIME, Math.min(ms, MAX_TIME))); // ticks may lie beyond the points
    return range.to - range.from > TWO_DAYS_MS ? date.toISOString().slice(0, 10) : date.toISOString().slice(11, 19);
}
