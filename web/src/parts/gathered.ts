// Work that many events ask for.

const FIRST_MS = 200;
const MOST_MS = 10_000;

/** Gives a function that does the work soon. Asked for again and again, it works less and less often, at last every ten
 *  seconds; after some quiet it is quick again. */
export function gathered(work: () => unknown): { ask: () => void; stop: () => void } {
    let timer = 0;
    let lastAt = 0;
    let pauseMs = FIRST_MS;
    function ask() {
        if (timer) return;
        const quietMs = Date.now() - lastAt;
        pauseMs = quietMs > 2 * MOST_MS ? FIRST_MS : Math.min(2 * pauseMs, MOST_MS);
        timer = setTimeout(
            () => {
                timer = 0;
                lastAt = Date.now();
                work();
            },
            Math.max(FIRST_MS, pauseMs - quietMs),
        );
    }
    return { ask, stop: () => clearTimeout(timer) };
}
