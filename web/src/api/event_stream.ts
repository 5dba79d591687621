// Reads server-sent events (text/event-stream).

import { ApiError, type RequestOptions, request } from "./client";

export interface StreamEvent {
    id: string;
    kind: string;
    data: Record<string, unknown>;
}

/** Splits the text of a stream into events. A piece of text may end anywhere. */
export class EventParser {
    private buffer = "";

    /** Takes the next piece of text and returns the events that it completes. */
    push(text: string): StreamEvent[] {
        const blocks = (this.buffer + text).split(/\r?\n\r?\n/);
        this.buffer = blocks.pop()!;
        return blocks.map(parseEvent).filter((event) => event !== null);
    }
}

/** Returns null for a block without data, such as a comment that keeps the connection open. */
function parseEvent(block: string): StreamEvent | null {
    const event = { id: "", kind: "message", data: "" };
    for (const line of block.split(/\r?\n/)) {
        if (line.startsWith("id:")) event.id = line.slice(3).trim();
        else if (line.startsWith("event:")) event.kind = line.slice(6).trim();
        else if (line.startsWith("data:")) event.data += line.slice(5).trimStart();
    }
    return event.data ? { ...event, data: JSON.parse(event.data) } : null;
}

/** Yields the events of a stream until it ends or the signal aborts it. Throws an ApiError if nothing at all arrives for
 *  `idleTimeoutMs`; 0 means no limit. */
export async function* streamEvents(
    method: string,
    path: string,
    { idleTimeoutMs = 0, ...options }: RequestOptions & { idleTimeoutMs?: number } = {},
): AsyncGenerator<StreamEvent> {
    const response = await request(method, path, { ...options, accept: "text/event-stream" });
    const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new EventParser();
    try {
        for (;;) {
            const { done, value } = await readWithTimeout(reader, idleTimeoutMs);
            if (done) return;
            yield* parser.push(value);
        }
    } finally {
        reader.cancel().catch(() => undefined);
    }
}

async function readWithTimeout(reader: ReadableStreamDefaultReader<string>, timeoutMs: number) {
    if (!timeoutMs) return reader.read();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const timeout = new Promise<never>((_, reject) => {
        timer = setTimeout(() => reject(new ApiError(0, "The server does not answer")), timeoutMs);
    });
    try {
        return await Promise.race([reader.read(), timeout]);
    } finally {
        clearTimeout(timer);
    }
}
