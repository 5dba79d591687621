import assert from "node:assert/strict";
import { test } from "node:test";

import { alignColumns, lastValue, summarizePlot } from "../src/components/plot_data";
import {
    canDraw,
    formatAxisTime,
    formatNumber,
    linearScale,
    MAX_POINTS,
    type Point,
    rangeOf,
    seriesName,
    thinPoints,
    toNumber,
    toPoints,
    toText,
} from "../src/session/chart_data";

const LINEAR = { isTime: false, isLog: false, categories: [] };

test("a chart can be drawn if it has a known type and elements", () => {
    assert.ok(canDraw({ type: "line", elements: [{}] }));
    for (const chart of [
        null,
        [],
        "line",
        { type: "line" },
        { type: "line", elements: [] },
        { type: "x", elements: [1] },
    ]) {
        assert.ok(!canDraw(chart), JSON.stringify(chart));
    }
});

test("values that are no numbers are left out", () => {
    assert.equal(toNumber("1.5"), 1.5);
    assert.equal(toNumber("2026-01-01T00:00:00Z", true), Date.UTC(2026, 0, 1));
    for (const value of ["x", null, undefined, {}, Number.NaN, Infinity, 1e301, "1e999"])
        assert.equal(toNumber(value), null);
    assert.deepEqual(toPoints([[1, 2], "x", [null, 3], [4, "y"], [5]], LINEAR, false), [
        [1, 2],
        [4, null],
        [5, null],
    ]);
    assert.deepEqual(toPoints("no list", LINEAR, false), []);
});

test("points of a logarithmic axis are exponents, and what is not positive has no place there", () => {
    assert.deepEqual(
        toPoints(
            [
                [100, 1000],
                [0, 1],
                [10, -1],
            ],
            { ...LINEAR, isLog: true },
            true,
        ),
        [
            [2, 3],
            [1, null],
        ],
    );
});

test("points of a categorical axis stand at the position of their name", () => {
    assert.deepEqual(
        toPoints(
            [
                ["b", 1],
                ["a", 2],
            ],
            { ...LINEAR, categories: ["a", "b"] },
            false,
        ),
        [
            [1, 1],
            [0, 2],
        ],
    );
});

test("labels are text, and those that a library made up are replaced", () => {
    assert.equal(toText({ toString: () => "evil" }), "");
    assert.equal(seriesName("sales", 0), "sales");
    assert.equal(seriesName("_child0", 0), "Series 1");
    assert.equal(seriesName(undefined, 1), "Series 2");
});

test("of too many points some are dropped evenly, and the last stays", () => {
    const points: Point[] = Array.from({ length: 3 * MAX_POINTS + 2 }, (_, index) => [index, index]);
    const thinned = thinPoints(points, 1);
    assert.ok(thinned.length <= MAX_POINTS + 1);
    assert.deepEqual(thinned.at(-1), points.at(-1));
    assert.equal(thinPoints(points.slice(0, 10), 2).length, 10);
    assert.ok(thinPoints(points, 4).length <= MAX_POINTS / 4 + 1);
});

test("a range has a margin, but keeps zero as its end", () => {
    assert.deepEqual(rangeOf([]), { from: 0, to: 1 });
    assert.deepEqual(rangeOf([0, 100]), { from: 0, to: 105 });
    assert.deepEqual(rangeOf([-100, 0]), { from: -105, to: 0 });
    assert.deepEqual(rangeOf([5]), { from: 4.5, to: 5.5 });
});

test("values are mapped to coordinates", () => {
    const scale = linearScale({ from: 0, to: 10 }, 100, 0);
    assert.deepEqual([0, 5, 10].map(scale), [100, 50, 0]);
});

test("numbers and times on axes are short", () => {
    assert.equal(formatNumber(1234.5678), "1235");
    assert.equal(formatNumber(0.0000123), "1.2e-5");
    assert.equal(formatNumber(2.5e9), "2.5e+9");
    const noon = Date.UTC(2026, 0, 1, 12);
    assert.equal(formatAxisTime(noon, { from: noon, to: noon + 1000 }), "12:00:00");
    assert.equal(formatAxisTime(noon, { from: noon, to: noon + 1e9 }), "2026-01-01");
    assert.ok(formatAxisTime(1e300, { from: 0, to: 1 }));
});

test("a plot has a column for its limit, from its beginning", () => {
    const lines = [{ label: "used", values: [3] }];
    assert.deepEqual(alignColumns({ times: [1000], lines, limit: 8 }), [
        [940, 1000],
        [null, 3],
        [8, 8],
    ]);
    assert.deepEqual(alignColumns({ times: [1, 2], lines: [{ label: "used", values: [3, 4] }] }), [
        [1, 2],
        [3, 4],
    ]);
});

test("a plot is summarized in a sentence", () => {
    const lines = [
        { label: "used", values: [1, 5, null, 3] },
        { label: "cache", values: [null, null, null, null] },
    ];
    assert.equal(
        summarizePlot("Memory", { times: [0, 10, 20, 30], lines, limit: 9 }, (value) => `${value} B`),
        "Memory over 30 seconds: used 3 B now, 5 B at most, cache not known; the limit is 9 B",
    );
    assert.equal(summarizePlot("Memory", { times: [], lines }, String), "Memory: nothing is known yet");
    assert.equal(lastValue(lines[0]!), 3);
    assert.equal(lastValue({ label: "", values: [] }), null);
});
