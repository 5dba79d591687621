import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import { type Throttled, throttle } from "../src/lib/throttle";
import { ManualClock } from "./manual_clock";

let clock: ManualClock;
let runs: number;
let throttled: Throttled;

beforeEach(() => {
    clock = new ManualClock();
    clock.install();
    runs = 0;
    throttled = throttle(() => {
        runs += 1;
    });
});

test("triggers in quick succession cause one run, soon after the first", () => {
    for (let count = 0; count < 5; count += 1) throttled.trigger();
    clock.advance(199);
    assert.equal(runs, 0);
    clock.advance(1);
    assert.equal(runs, 1);
});

test("a stream of triggers causes fewer and fewer runs, down to one in ten seconds", () => {
    const runsIn = (seconds: number) => {
        const before = runs;
        for (let step = 0; step < 10 * seconds; step += 1) {
            throttled.trigger();
            clock.advance(100);
        }
        return runs - before;
    };
    assert.ok(runsIn(10) >= 4);
    runsIn(20);
    assert.equal(runsIn(100), 10);
});

test("after a quiet time it is quick again", () => {
    for (let count = 0; count < 20; count += 1) {
        throttled.trigger();
        clock.advance(10_000);
    }
    clock.advance(20_001);
    const before = runs;
    throttled.trigger();
    clock.advance(200);
    assert.equal(runs, before + 1);
});

test("nothing runs after a cancel", () => {
    throttled.trigger();
    throttled.cancel();
    clock.advance(60_000);
    assert.equal(runs, 0);
});
