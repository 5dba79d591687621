// Counts the output of a terminal: how much has arrived, is on the screen, and was acknowledged to the server.

export const WINDOW = 1024 * 1024; // bytes that the server sends beyond the acknowledged offset
const ACKNOWLEDGE_EVERY = 128 * 1024;

export class OutputFlow {
    /** The offset after the last byte that has arrived. */
    received = 0;
    /** Bytes that have arrived and are not on the screen yet. */
    pending = 0;
    private acknowledged = 0;
    private replayEnd = 0;

    /** Output up to this offset was sent before: it is a replay for this page. */
    setReplayEnd(offset: number): void {
        this.replayEnd = offset;
    }

    /** Whether the screen shows output of the past. */
    get isReplaying(): boolean {
        return this.shown < this.replayEnd;
    }

    private get shown(): number {
        return this.received - this.pending;
    }

    /** A new connection begins with an acknowledgement of all that was received. */
    restart(): void {
        this.acknowledged = this.received;
    }

    arrive(size: number): void {
        this.received += size;
        this.pending += size;
    }

    /** Continues at a later offset, after the server has dropped output. */
    skipTo(offset: number): void {
        this.received = offset;
    }

    /** Notes that bytes are on the screen. Returns the offset to acknowledge, or null while it is too early for that. */
    show(size: number): number | null {
        this.pending -= size;
        if (this.shown - this.acknowledged < ACKNOWLEDGE_EVERY) return null;
        this.acknowledged = this.shown;
        return this.shown;
    }
}
