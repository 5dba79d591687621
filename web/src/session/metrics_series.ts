// The points of a session's plots.

import type { FiguresView, MetricsView } from "../api/schemas";

/** Returns the series with the current values as its last point. */
export function seriesWithNow({ series, now }: MetricsView): FiguresView[] {
    const last = series[series.length - 1];
    return last && Date.parse(last.at) >= Date.parse(now.at) ? series : [...series, now];
}

/** Returns the rate at which a counter rises; null where it is not known, as at the first point. */
export function perSecond(points: readonly FiguresView[], field: "sent_bytes" | "received_bytes"): (number | null)[] {
    return points.map((point, index) => {
        const before = points[index - 1];
        if (!before) return null;
        const seconds = (Date.parse(point.at) - Date.parse(before.at)) / 1000;
        return seconds > 0 ? Math.max(0, point[field] - before[field]) / seconds : null;
    });
}
