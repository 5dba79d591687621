// The line between a screen and a terminal of a session. It comes back by itself where it was, and nothing comes twice.
//
// Flow: the server sends at most WINDOW bytes beyond what the screen has shown, so a fast command waits for the page.
// A hidden page, in which browsers let almost nothing run, hangs up instead of holding the command (and others who look
// at it) back, and goes on from its offset when it is seen again. So does a page that only watches, and acknowledges
// nothing, until it has shown what it has.
//
// Size: a terminal has one size, which everybody who looks at it shares. The page that was used last gives it: focusing
// or typing takes over, and the others show the terminal in the size that they are told.

import { signal } from "@preact/signals";

import { ApiError, get, openSocket, path } from "../api";
import { describe } from "../parts/messages";
import type { ProcessInfo } from "../types";
import type { Screen } from "./screen";

export type State = "connecting" | "open" | "away" | "ended" | "failed";

export interface Place {
    sessionId: string;
    processId: string;
    /** It is not there yet: the first connection starts it. */
    isNew: boolean;
    command?: string;
    readOnly?: boolean;
    /** Of a page that has no cookie: the credential of its sockets. */
    token?: string;
}

const WINDOW = 1024 * 1024;
const TELL_EVERY = 128 * 1024;
const HANG_UP_AT = 256 * 1024; // not shown yet, in a hidden page
const PIECE = 64 * 1024; // of what is typed or pasted at once
const LONGEST_WAIT_MS = 5_000;
const MOST_ROWS = 300; // that are shown, whatever size somebody else gives the terminal: more would stop the browser
const MOST_COLUMNS = 800;
const FINAL = new Set([4400, 4401, 4403, 4404, 4409, 4410, 4422]);
// What a terminal answers when a program asks what it is and where the cursor stands.
const ANSWER = /^\x1b(?:\[[?>=]?[\d;]*(?:\$y|[cnRt])|[\]P])/;

export class Connection {
    readonly state = signal<State>("connecting");
    /** Why it failed, or how it ended. */
    readonly note = signal("");
    /** The size that somebody else has chosen; empty while this page gives it. */
    readonly foreignSize = signal("");

    private socket: WebSocket | null = null;
    private received = 0; // the offset after the last byte that came
    private waiting = 0; // bytes that came and are not shown yet
    private told = 0; // the offset that the server was told
    private replayUntil = 0;
    private agreed = ""; // the size that the terminal has, as far as this page knows
    private begun: boolean;
    private closed = false;
    private connecting = false;
    private waitMs = 500;
    private timer = 0;
    private cleaners: (() => void)[] = [];

    constructor(
        private readonly place: Place,
        private readonly screen: Screen,
    ) {
        this.begun = !place.isNew;
        const { terminal } = screen;
        if (!place.readOnly) {
            terminal.onData((data) => this.type(new TextEncoder().encode(data), ANSWER.test(data)));
            terminal.onBinary((data) =>
                this.type(
                    Uint8Array.from(data, (character) => character.charCodeAt(0)),
                    false,
                ),
            );
            this.on(terminal.textarea!, "focus", () => this.takeSize());
        }
        this.on(document, "visibilitychange", () => (document.hidden ? this.hangUpIfBehind() : this.comeBack()));
        this.on(window, "online", () => this.comeBack());
        this.connect();
    }

    close(): void {
        this.closed = true;
        clearTimeout(this.timer);
        for (const clean of this.cleaners) clean();
        this.socket?.close();
    }

    /** The place of the screen has another size now. */
    fit(): void {
        if (this.foreignSize.value) return;
        this.screen.fit.fit();
        const { rows, cols: columns } = this.screen.terminal;
        if (this.place.readOnly || this.agreed === `${columns}×${rows}`) return;
        this.agreed = `${columns}×${rows}`;
        this.send({ type: "resize", rows, columns });
    }

    /** The terminal gets the size of this page. */
    takeSize(): void {
        if (this.place.readOnly || !this.foreignSize.value) return;
        this.foreignSize.value = "";
        this.fit();
    }

    again(): void {
        this.waitMs = 500;
        this.state.value = "connecting";
        this.connect();
    }

    private on(target: EventTarget, name: string, listener: () => void): void {
        target.addEventListener(name, listener);
        this.cleaners.push(() => target.removeEventListener(name, listener));
    }

    private async connect(): Promise<void> {
        if (this.connecting) return;
        this.connecting = true;
        clearTimeout(this.timer);
        const { sessionId, processId, token, readOnly, command } = this.place;
        try {
            if (this.begun) {
                // It says what went wrong, which a browser does not tell of a socket, and where the past ends.
                const info = await get<ProcessInfo>(path`/api/sessions/${sessionId}/processes/${processId}`);
                this.replayUntil = info.bytes_total;
            }
            const { rows, cols } = this.screen.terminal;
            const size = this.begun && !document.hasFocus() ? {} : { rows, columns: cols };
            const [place, query] = readOnly
                ? [
                      path`/api/sessions/${sessionId}/processes/${processId}/attach`,
                      { offset: this.received, encoding: "base64" },
                  ]
                : [
                      path`/api/sessions/${sessionId}/terminal`,
                      { process_id: processId, offset: this.received, window: WINDOW, command, ...size },
                  ];
            const socket = await openSocket(place, query, sessionId, token);
            if (this.closed) return socket.close();
            this.socket = socket;
            socket.onmessage = (event) => this.socket === socket && this.take(event.data);
            socket.onclose = (event) => this.socket === socket && this.lost(event.code);
        } catch (error) {
            if (this.closed) return;
            if (error instanceof ApiError && !error.isAway && error.status !== 429) this.fail(describe(error));
            else this.retry();
        } finally {
            this.connecting = false;
        }
    }

    private take(data: string | ArrayBuffer): void {
        if (typeof data !== "string") return this.show(new Uint8Array(data));
        const message = JSON.parse(data);
        switch (message.type) {
            case "output":
                if (message.offset > this.received) this.skipTo(message.offset);
                this.show(Uint8Array.from(atob(message.data), (character) => character.charCodeAt(0)));
                break;
            case "started":
                this.begun = true;
                this.waitMs = 500;
                this.told = this.received;
                this.state.value = "open";
                this.note.value = "";
                this.agreed = "";
                if (message.rows === null) this.fit();
                else this.adopt(message.rows, message.columns);
                break;
            case "size":
                this.adopt(message.rows, message.columns);
                break;
            case "gap":
                this.skipTo(message.offset);
                break;
            case "error":
                this.note.value = String(message.detail);
                break;
            case "result":
                this.state.value = "ended";
                this.note.value =
                    message.reason === "exited"
                        ? `It ended with ${message.exit_code}.`
                        : `It ended: ${message.reason}.`;
                break;
        }
    }

    private show(data: Uint8Array): void {
        this.received += data.length;
        this.waiting += data.length;
        this.screen.terminal.write(data, () => this.wasShown(data.length));
        if (document.hidden || this.place.readOnly) this.hangUpIfBehind();
    }

    private skipTo(offset: number): void {
        this.received = offset;
        // The first byte ends a sequence that the gap may have cut.
        this.screen.terminal.write("\x18\r\n\x1b[0;2m[a part of the output was not kept]\x1b[0m\r\n");
    }

    private wasShown(size: number): void {
        this.waiting -= size;
        if (this.waiting === 0) this.comeBack();
        const shown = this.received - this.waiting;
        if (shown - this.told < TELL_EVERY) return;
        this.told = shown;
        this.send({ type: "shown", offset: shown });
    }

    private type(data: Uint8Array, isAnswer: boolean): void {
        // Programs of the past have their answers already, and of several pages only the one that is used answers.
        const isPast = this.received - this.waiting < this.replayUntil;
        if (isAnswer && (isPast || !this.hasFocus)) return;
        if (this.socket?.readyState !== WebSocket.OPEN) return;
        if (!isAnswer) this.takeSize();
        for (let at = 0; at < data.length; at += PIECE)
            this.socket.send(data.subarray(at, at + PIECE) as Uint8Array<ArrayBuffer>);
    }

    private get hasFocus(): boolean {
        return document.activeElement === this.screen.terminal.textarea;
    }

    private adopt(rows: number, columns: number): void {
        this.agreed = `${columns}×${rows}`;
        const own = this.screen.fit.proposeDimensions();
        this.foreignSize.value = own?.rows === rows && own.cols === columns ? "" : this.agreed;
        this.screen.terminal.resize(Math.min(columns, MOST_COLUMNS), Math.min(rows, MOST_ROWS));
    }

    private send(message: object): void {
        if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
    }

    private hangUpIfBehind(): void {
        if (this.state.value !== "open" || this.waiting < (document.hidden ? HANG_UP_AT : WINDOW)) return;
        const socket = this.socket;
        this.socket = null;
        this.state.value = "away";
        socket?.close();
    }

    private comeBack(): void {
        if (this.state.value === "away" && !this.closed && !document.hidden && this.waiting < HANG_UP_AT)
            this.connect();
    }

    private lost(code: number): void {
        this.socket = null;
        if (this.closed || this.state.value === "ended") return;
        if (FINAL.has(code)) this.fail(this.note.value || "The server has closed the terminal.");
        else this.retry();
    }

    private fail(why: string): void {
        this.state.value = "failed";
        this.note.value = why;
    }

    private retry(): void {
        this.state.value = "away";
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.comeBack(), this.waitMs * (0.5 + Math.random()));
        this.waitMs = Math.min(this.waitMs * 2, LONGEST_WAIT_MS);
    }
}
