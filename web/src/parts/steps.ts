// Where an axis has its marks.

const HOW_MANY = 4;

/** Steps between two values that are easy to read: 1, 2 or 5 of a power of ten, or a power of two. */
export function roundSteps(from: number, to: number, binary = false): number[] {
    const rough = (to - from) / HOW_MANY;
    if (!(rough > 0) || !Number.isFinite(rough)) return [from];
    let step: number;
    if (binary) step = 2 ** Math.ceil(Math.log2(rough));
    else {
        const power = 10 ** Math.floor(Math.log10(rough));
        step = power * ([1, 2, 5, 10].find((factor) => factor * power >= rough) ?? 10);
    }
    const steps: number[] = [];
    for (let at = Math.ceil(from / step); at * step <= to && steps.length < 20; at += 1)
        steps.push(Number((at * step).toPrecision(12)));
    return steps;
}

/** The same for an axis of powers of ten; `from` and `to` are exponents, and so are the steps. */
export function logSteps(from: number, to: number): number[] {
    if (to - from > 1) return roundSteps(from, to).filter((step) => Number.isInteger(step));
    return roundSteps(10 ** from, 10 ** to).map(Math.log10);
}
