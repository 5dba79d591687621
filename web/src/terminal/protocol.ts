// The messages of a terminal's WebSocket. Binary messages are output; all others are JSON.

export type ServerMessage =
    | { type: "output"; offset: number; data: string } // base64, for pages that only watch
    | { type: "started"; rows: number | null; columns: number | null }
    | { type: "size"; rows: number; columns: number }
    | { type: "gap"; offset: number }
    | { type: "error"; detail: string }
    | { type: "result"; reason: string; exit_code: number };

export type ClientMessage = { type: "resize"; rows: number; columns: number } | { type: "shown"; offset: number };

// The socket is closed with 4000 plus the HTTP status. After these another attempt would fail in the same way.
const FINAL_CLOSE_CODES = new Set([4400, 4401, 4403, 4404, 4409, 4410, 4422]);

export const isFinalClose = (code: number): boolean => FINAL_CLOSE_CODES.has(code);

// What a terminal replies when a program asks for its type, its settings or the position of the cursor.
const TERMINAL_REPLY = /^\x1b(?:\[[?>=]?[\d;]*(?:\$y|[cnRt])|[\]P])/;

/** Whether the input was sent by the terminal itself, as opposed to typed. */
export const isTerminalReply = (input: string): boolean => TERMINAL_REPLY.test(input);

const CHUNK_SIZE = 64 * 1024;

/** Splits typed or pasted input into messages of a size that the server takes. */
export function splitInput(data: Uint8Array<ArrayBuffer>): Uint8Array<ArrayBuffer>[] {
    const chunks: Uint8Array<ArrayBuffer>[] = [];
    for (let start = 0; start < data.length; start += CHUNK_SIZE) chunks.push(data.subarray(start, start + CHUNK_SIZE));
    return chunks;
}

/** Makes an id for the process of a new terminal. */
export const newTerminalId = (): string => `terminal-${crypto.getRandomValues(new Uint32Array(2)).join("")}`;
