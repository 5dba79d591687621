// Positions of the ticks of an axis.

const TARGET_COUNT = 4;
const MAX_COUNT = 20;

/** Returns ticks that are easy to read: multiples of 1, 2 or 5 times a power of ten, or of a power of two. */
export function linearTicks(from: number, to: number, binary = false): number[] {
    const rough = (to - from) / TARGET_COUNT;
    if (!(rough > 0) || !Number.isFinite(rough)) return [from];
    const step = binary ? 2 ** Math.ceil(Math.log2(rough)) : decimalStep(rough);
    const ticks: number[] = [];
    for (let index = Math.ceil(from / step); index * step <= to && ticks.length < MAX_COUNT; index += 1) {
        ticks.push(Number((index * step).toPrecision(12)));
    }
    return ticks;
}

function decimalStep(rough: number): number {
    const power = 10 ** Math.floor(Math.log10(rough));
    return power * ([1, 2, 5, 10].find((factor) => factor * power >= rough) ?? 10);
}

/** Returns ticks of a logarithmic axis. The limits and the ticks are exponents of ten. */
export function logTicks(from: number, to: number): number[] {
    if (to - from > 1) return linearTicks(from, to).filter((tick) => Number.isInteger(tick));
    return linearTicks(10 ** from, 10 ** to).map(Math.log10);
}
