// The data of a plot, and a sentence that says what it shows.

export interface Line {
    label: string;
    values: readonly (number | null)[];
}

export interface PlotData {
    /** Seconds since 1970, rising. */
    times: readonly number[];
    lines: readonly Line[];
    limit?: number;
}

export const MIN_SPAN_S = 60;

/** Returns the columns that uPlot draws: the times, one column for each line, and one for the limit. */
export function alignColumns({ times, lines, limit }: PlotData): (readonly (number | null)[])[] {
    // A second point lets the limit be a line from the beginning, while there is one value only.
    const start = times.length === 1 ? [times[0]! - MIN_SPAN_S] : [];
    const allTimes = [...start, ...times];
    const columns: (readonly (number | null)[])[] = [
        allTimes,
        ...lines.map((line) => [...start.map(() => null), ...line.values]),
    ];
    if (limit !== undefined) columns.push(allTimes.map(() => limit));
    return columns;
}

export function lastValue(line: Line): number | null {
    return line.values[line.values.length - 1] ?? null;
}

/** Says what the plot shows, for people who cannot see it. */
export function summarizePlot(
    label: string,
    { times, lines, limit }: PlotData,
    format: (value: number) => string,
): string {
    if (times.length === 0) return `${label}: nothing is known yet`;
    const spanS = Math.round(times[times.length - 1]! - times[0]!);
    const parts = lines.map((line) => {
        const known = line.values.filter((value) => value !== null);
        if (known.length === 0) return `${line.label} not known`;
        const max = known.reduce((largest, value) => Math.max(largest, value));
        return `${line.label} ${format(known[known.length - 1]!)} now, ${format(max)} at most`;
    });
    const bound = limit === undefined ? "" : `; the limit is ${format(limit)}`;
    return `${label} over ${spanS} seconds: ${parts.join(", ")}${bound}`;
}
