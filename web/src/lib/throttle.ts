// Limits how often work is done that many events ask for.

const FIRST_MS = 200;
const MAX_MS = 10_000;

export interface Throttled {
    trigger: () => void;
    cancel: () => void;
}

/** Runs `work` soon after a trigger. Under a stream of triggers it runs less and less often, down to every ten seconds;
 *  after a quiet time it is quick again. */
export function throttle(work: () => unknown): Throttled {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let lastRunAt = 0;
    let pauseMs = FIRST_MS;
    function trigger() {
        if (timer) return;
        const quietMs = Date.now() - lastRunAt;
        pauseMs = quietMs > 2 * MAX_MS ? FIRST_MS : Math.min(2 * pauseMs, MAX_MS);
        timer = setTimeout(run, Math.max(FIRST_MS, pauseMs - quietMs));
    }
    function run() {
        timer = undefined;
        lastRunAt = Date.now();
        work();
    }
    return { trigger, cancel: () => clearTimeout(timer) };
}
