import assert from "node:assert/strict";
import { test } from "node:test";

import { linearTicks, logTicks } from "../src/lib/ticks";

test("ticks are multiples of 1, 2 or 5 times a power of ten", () => {
    assert.deepEqual(linearTicks(0, 4), [0, 1, 2, 3, 4]);
    assert.deepEqual(linearTicks(0, 7), [0, 2, 4, 6]);
    assert.deepEqual(linearTicks(0, 0.35), [0, 0.1, 0.2, 0.3]);
    assert.deepEqual(linearTicks(-30, 50), [-20, 0, 20, 40]);
});

test("ticks of bytes are multiples of a power of two", () => {
    assert.deepEqual(linearTicks(0, 4096, true), [0, 1024, 2048, 3072, 4096]);
});

test("an axis without a length has one tick", () => {
    assert.deepEqual(linearTicks(3, 3), [3]);
    assert.deepEqual(linearTicks(0, Infinity), [0]);
    assert.deepEqual(linearTicks(5, Number.NaN), [5]);
});

test("a logarithmic axis has its ticks at powers of ten", () => {
    assert.deepEqual(logTicks(0, 4), [0, 1, 2, 3, 4]);
    assert.deepEqual(
        logTicks(0, 1).map((tick) => Math.round(10 ** tick)),
        [5, 10],
    );
});
