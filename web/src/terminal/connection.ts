// Connects a screen to a terminal of a session. A lost connection comes back by itself and continues at its offset, so
// that no output is missing or shown twice.
//
// Flow control: the server sends at most WINDOW bytes beyond what the screen has shown, so a fast command waits for the
// page. Browsers let a hidden page run hardly at all: it disconnects, instead of holding back the command and everybody
// else who watches it, and continues when it is visible again. A page that only watches acknowledges nothing, so it
// disconnects as well while it is far behind.
//
// Size: a terminal has one size for all pages that show it. The page that was used last sets it, by focus or by typing;
// the others show the terminal in that size.

import { signal } from "@preact/signals";

import { ApiError, apiPath, get } from "../api/client";
import type { ProcessView } from "../api/schemas";
import { openSocket } from "../api/transfers";
import { errorMessage } from "../components/notifications";
import { decodeBase64 } from "../lib/base64";
import { describeExit } from "../lib/format";
import { OutputFlow, WINDOW } from "./output_flow";
import { type ClientMessage, isFinalClose, isTerminalReply, type ServerMessage, splitInput } from "./protocol";
import { GAP_NOTICE, type Screen } from "./screen";

export type ConnectionState = "connecting" | "open" | "disconnected" | "ended" | "failed";

export interface TerminalTarget {
    sessionId: string;
    processId: string;
    /** The terminal does not exist yet: the first connection starts it. */
    isNew: boolean;
    command?: string;
    readOnly?: boolean;
    /** The credential of the sockets, for a page that has no cookie. */
    token?: string;
}

const MAX_PENDING_HIDDEN = 256 * 1024; // bytes, in a hidden page
const FIRST_RETRY_MS = 500;
const MAX_RETRY_MS = 5_000;
// Another page may set any size, and larger screens than this would freeze the browser.
const MAX_ROWS = 300;
const MAX_COLUMNS = 800;

export class Connection {
    readonly state = signal<ConnectionState>("connecting");
    /** Why it failed, or how it ended. */
    readonly note = signal("");
    /** The size that another page has set; empty while this page sets it. */
    readonly foreignSize = signal("");

    private socket: WebSocket | null = null;
    private readonly flow = new OutputFlow();
    private terminalSize = ""; // the last that this page knows of
    private hasStarted: boolean;
    private isClosed = false;
    private isConnecting = false;
    private retryMs = FIRST_RETRY_MS;
    private retryTimer: ReturnType<typeof setTimeout> | undefined;
    private readonly cleanups: (() => void)[] = [];

    constructor(
        private readonly target: TerminalTarget,
        private readonly screen: Screen,
    ) {
        this.hasStarted = !target.isNew;
        const { terminal } = screen;
        if (!target.readOnly) {
            terminal.onData((data) => this.sendInput(new TextEncoder().encode(data), isTerminalReply(data)));
            terminal.onBinary((data) =>
                this.sendInput(
                    Uint8Array.from(data, (byte) => byte.charCodeAt(0)),
                    false,
                ),
            );
            this.listen(terminal.textarea!, "focus", () => this.takeSize());
        }
        this.listen(document, "visibilitychange", () =>
            document.hidden ? this.disconnectIfBehind() : this.resumeIfReady(),
        );
        this.listen(window, "online", () => this.resumeIfReady());
        this.connect();
    }

    close(): void {
        this.isClosed = true;
        clearTimeout(this.retryTimer);
        for (const clean of this.cleanups) clean();
        this.socket?.close();
    }

    /** Fits the screen into its container and tells the server the new size, unless another page sets it. */
    fit(): void {
        if (this.foreignSize.value) return;
        this.screen.fit.fit();
        const { rows, cols: columns } = this.screen.terminal;
        const size = formatSize(rows, columns);
        if (this.target.readOnly || this.terminalSize === size) return;
        this.terminalSize = size;
        this.send({ type: "resize", rows, columns });
    }

    /** Gives the terminal the size of this page. */
    takeSize(): void {
        if (this.target.readOnly || !this.foreignSize.value) return;
        this.foreignSize.value = "";
        this.fit();
    }

    reconnect(): void {
        this.retryMs = FIRST_RETRY_MS;
        this.state.value = "connecting";
        this.connect();
    }

    private listen(target: EventTarget, name: string, listener: () => void): void {
        target.addEventListener(name, listener);
        this.cleanups.push(() => target.removeEventListener(name, listener));
    }

    private async connect(): Promise<void> {
        if (this.isConnecting) return;
        this.isConnecting = true;
        clearTimeout(this.retryTimer);
        try {
            await this.openSocket();
        } catch (error) {
            if (this.isClosed) return;
            if (error instanceof ApiError && !error.isUnavailable && error.status !== 429)
                this.fail(errorMessage(error));
            else this.retryLater();
        } finally {
            this.isConnecting = false;
        }
    }

    private async openSocket(): Promise<void> {
        const { sessionId, processId, token, readOnly, command } = this.target;
        if (this.hasStarted) {
            // Says what is wrong, which browsers do not tell about a socket, and where the replay ends.
            const process = await get<ProcessView>(apiPath`/api/sessions/${sessionId}/processes/${processId}`);
            this.flow.setReplayEnd(process.bytes_total);
        }
        const { rows, cols } = this.screen.terminal;
        const size = this.hasStarted && !document.hasFocus() ? {} : { rows, columns: cols };
        const offset = this.flow.received;
        const [path, query] = readOnly
            ? [apiPath`/api/sessions/${sessionId}/processes/${processId}/attach`, { offset, encoding: "base64" }]
            : [
                  apiPath`/api/sessions/${sessionId}/terminal`,
                  { process_id: processId, offset, window: WINDOW, command, ...size },
              ];
        const socket = await openSocket(path, query, sessionId, token);
        if (this.isClosed) {
            socket.close();
            return;
        }
        this.socket = socket;
        socket.onmessage = (event) => this.socket === socket && this.receive(event.data);
        socket.onclose = (event) => this.socket === socket && this.handleClose(event.code);
    }

    private receive(data: string | ArrayBuffer): void {
        if (typeof data === "string") this.handleMessage(JSON.parse(data));
        else this.show(new Uint8Array(data));
    }

    private handleMessage(message: ServerMessage): void {
        switch (message.type) {
            case "output":
                if (message.offset > this.flow.received) this.skipTo(message.offset);
                this.show(decodeBase64(message.data));
                break;
            case "started":
                this.hasStarted = true;
                this.retryMs = FIRST_RETRY_MS;
                this.flow.restart();
                this.state.value = "open";
                this.note.value = "";
                this.terminalSize = "";
                if (message.rows === null || message.columns === null) this.fit();
                else this.applySize(message.rows, message.columns);
                break;
            case "size":
                this.applySize(message.rows, message.columns);
                break;
            case "gap":
                this.skipTo(message.offset);
                break;
            case "error":
                this.note.value = String(message.detail);
                break;
            case "result":
                this.state.value = "ended";
                this.note.value = describeExit(message);
                break;
        }
    }

    private show(data: Uint8Array): void {
        this.flow.arrive(data.length);
        this.screen.terminal.write(data, () => this.handleShown(data.length));
        if (document.hidden || this.target.readOnly) this.disconnectIfBehind();
    }

    private skipTo(offset: number): void {
        this.flow.skipTo(offset);
        this.screen.terminal.write(GAP_NOTICE);
    }

    private handleShown(size: number): void {
        const offset = this.flow.show(size);
        if (this.flow.pending === 0) this.resumeIfReady();
        if (offset !== null) this.send({ type: "shown", offset });
    }

    private sendInput(data: Uint8Array<ArrayBuffer>, isReply: boolean): void {
        // Programs of the past have got their replies, and of several pages only the focused one replies.
        if (isReply && (this.flow.isReplaying || !this.hasFocus)) return;
        if (this.socket?.readyState !== WebSocket.OPEN) return;
        if (!isReply) this.takeSize();
        for (const chunk of splitInput(data)) this.socket.send(chunk);
    }

    private get hasFocus(): boolean {
        return document.activeElement === this.screen.terminal.textarea;
    }

    private applySize(rows: number, columns: number): void {
        this.terminalSize = formatSize(rows, columns);
        const own = this.screen.fit.proposeDimensions();
        this.foreignSize.value = own?.rows === rows && own.cols === columns ? "" : this.terminalSize;
        this.screen.terminal.resize(Math.min(columns, MAX_COLUMNS), Math.min(rows, MAX_ROWS));
    }

    private send(message: ClientMessage): void {
        if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
    }

    private disconnectIfBehind(): void {
        const maxPending = document.hidden ? MAX_PENDING_HIDDEN : WINDOW;
        if (this.state.value !== "open" || this.flow.pending < maxPending) return;
        const socket = this.socket;
        this.socket = null;
        this.state.value = "disconnected";
        socket?.close();
    }

    private resumeIfReady(): void {
        const isReady = !this.isClosed && !document.hidden && this.flow.pending < MAX_PENDING_HIDDEN;
        if (this.state.value === "disconnected" && isReady) this.connect();
    }

    private handleClose(code: number): void {
        this.socket = null;
        if (this.isClosed || this.state.value === "ended") return;
        if (isFinalClose(code)) this.fail(this.note.value || "The server has closed the terminal.");
        else this.retryLater();
    }

    private fail(reason: string): void {
        this.state.value = "failed";
        this.note.value = reason;
    }

    private retryLater(): void {
        this.state.value = "disconnected";
        clearTimeout(this.retryTimer);
        this.retryTimer = setTimeout(() => this.resumeIfReady(), this.retryMs * (0.5 + Math.random()));
        this.retryMs = Math.min(this.retryMs * 2, MAX_RETRY_MS);
    }
}

const formatSize = (rows: number, columns: number): string => `${columns}×${rows}`;
