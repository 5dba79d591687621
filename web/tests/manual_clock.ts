// Time that passes when a test says so.

interface Timer {
    at: number;
    run: () => void;
}

export class ManualClock {
    private now = 1_700_000_000_000;
    private lastId = 0;
    private readonly timers = new Map<number, Timer>();

    /** Replaces the timers and the clock of the process. */
    install(): void {
        Date.now = () => this.now;
        Object.assign(globalThis, {
            setTimeout: (run: () => void, ms = 0) => {
                this.lastId += 1;
                this.timers.set(this.lastId, { at: this.now + ms, run });
                return this.lastId;
            },
            clearTimeout: (id: number) => this.timers.delete(id),
        });
    }

    advance(ms: number): void {
        const end = this.now + ms;
        for (;;) {
            const [id, timer] = [...this.timers].sort(([, one], [, other]) => one.at - other.at)[0] ?? [];
            if (id === undefined || !timer || timer.at > end) break;
            this.timers.delete(id);
            this.now = timer.at;
            timer.run();
        }
        this.now = end;
    }
}
