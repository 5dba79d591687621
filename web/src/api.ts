// Requests to Warren's API. Every failure is an ApiError whose message can be shown to people.

import { memoryKey, signedOut } from "./account";
import { serverTime } from "./parts/clock";

export class ApiError extends Error {
    constructor(
        readonly status: number,
        message: string,
        readonly code = "",
        readonly remedy = "",
        readonly retryAfterS = 0,
    ) {
        super(message);
    }

    /** Whether the server could not be reached, rather than refused. */
    get isAway(): boolean {
        return this.status === 0 || this.status === 502 || this.status === 503 || this.status === 504;
    }
}

export type Query = Record<string, string | number | boolean | readonly string[] | undefined>;

export interface Options {
    query?: Query;
    body?: unknown; // sent as JSON, unless it is a Blob
    accept?: string;
    range?: string; // bytes=0-9
    lastId?: string; // of the last event that was seen of a stream
    signal?: AbortSignal;
}

export function address(path: string, query: Query = {}): string {
    const pairs: string[] = [];
    for (const [name, value] of Object.entries(query)) {
        if (value === undefined || value === "") continue;
        for (const one of Array.isArray(value) ? value : [value]) pairs.push(`${name}=${encodeText(String(one))}`);
    }
    return pairs.length ? `${path}?${pairs.join("&")}` : path;
}

/** Names of files need not be UTF-8: the API gives their other bytes as lone surrogates, and takes them as bytes. */
function encodeText(text: string): string {
    return text.replace(/\p{Surrogate}|\P{Surrogate}+/gu, (part) => {
        const code = part.codePointAt(0)!;
        if (code >= 0xdc80 && code <= 0xdcff) return `%${(code - 0xdc00).toString(16).toUpperCase()}`;
        return encodeURIComponent(code >= 0xd800 && code <= 0xdfff ? "\ufffd" : part);
    });
}

/** Sends a request and gives the response, if it is a good one. */
export async function request(method: string, path: string, options: Options = {}): Promise<Response> {
    const headers: Record<string, string> = { "X-Warren-Page": "1" };
    let body: BodyInit | undefined;
    if (options.body instanceof Blob) body = options.body;
    else if (options.body !== undefined) {
        headers["Content-Type"] = "application/json";
        body = JSON.stringify(options.body);
    }
    if (options.accept) headers["Accept"] = options.accept;
    if (options.range) headers["Range"] = options.range;
    if (options.lastId) headers["Last-Event-ID"] = options.lastId;
    if (memoryKey.value) headers["Authorization"] = `Bearer ${memoryKey.value}`;
    let response: Response;
    try {
        response = await fetch(address(path, options.query), {
            method,
            headers,
            body,
            signal: options.signal,
            credentials: memoryKey.value ? "omit" : "same-origin",
            redirect: "error",
        });
    } catch (error) {
        if (options.signal?.aborted) throw error;
        throw new ApiError(0, "The server cannot be reached");
    }
    serverTime(response.headers.get("Date"));
    if (response.ok) return response;
    const problem = await readProblem(response);
    if (problem.status === 401) signedOut();
    throw problem;
}

async function readProblem(response: Response): Promise<ApiError> {
    const retryAfterS = Number(response.headers.get("Retry-After")) || 0;
    try {
        const values = await response.json();
        return new ApiError(
            response.status,
            String(values.detail ?? values.title),
            values.code,
            values.remedy,
            retryAfterS,
        );
    } catch {
        return new ApiError(response.status, `The server answered ${response.status}`, "", "", retryAfterS);
    }
}

export async function call<T>(method: string, path: string, options: Options = {}): Promise<T> {
    const response = await request(method, path, options);
    return (response.status === 204 ? undefined : await response.json()) as T;
}

export const get = <T>(path: string, query?: Query, signal?: AbortSignal) => call<T>("GET", path, { query, signal });
export const post = <T>(path: string, body?: unknown) => call<T>("POST", path, { body });
export const put = <T>(path: string, body?: unknown) => call<T>("PUT", path, { body });
export const patch = <T>(path: string, body?: unknown) => call<T>("PATCH", path, { body });
export const remove = (path: string, query?: Query) => call<void>("DELETE", path, { query });

/** A path of the API with its parts encoded: path`/api/sessions/${id}`. */
export function path(texts: TemplateStringsArray, ...values: readonly (string | number)[]): string {
    return texts.reduce((all, text, at) => all + encodeURIComponent(String(values[at - 1])) + text);
}

export interface StreamEvent {
    id: string;
    kind: string;
    data: any;
}

/** The events of a stream (text/event-stream), until it ends or the signal aborts it. After `silentMs` without a sign of
 *  life the server counts as away. */
export async function* events(
    method: string,
    path: string,
    options: Options & { silentMs?: number } = {},
): AsyncGenerator<StreamEvent> {
    const response = await request(method, path, { ...options, accept: "text/event-stream" });
    const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    try {
        for (;;) {
            const { done, value } = await readSoon(reader, options.silentMs);
            if (done) return;
            text += value;
            const blocks = text.split(/\r?\n\r?\n/);
            text = blocks.pop()!;
            for (const block of blocks) {
                const event = readEvent(block);
                if (event) yield event;
            }
        }
    } finally {
        reader.cancel().catch(() => undefined);
    }
}

async function readSoon(reader: ReadableStreamDefaultReader<string>, silentMs = 0) {
    if (!silentMs) return reader.read();
    let timer = 0;
    const tooLate = new Promise<never>((_, reject) => {
        timer = setTimeout(() => reject(new ApiError(0, "The server does not answer")), silentMs);
    });
    try {
        return await Promise.race([reader.read(), tooLate]);
    } finally {
        clearTimeout(timer);
    }
}

function readEvent(block: string): StreamEvent | null {
    const event = { id: "", kind: "message", data: "" };
    for (const line of block.split(/\r?\n/)) {
        if (line.startsWith("id:")) event.id = line.slice(3).trim();
        else if (line.startsWith("event:")) event.kind = line.slice(6).trim();
        else if (line.startsWith("data:")) event.data += line.slice(5).trimStart();
    }
    return event.data ? { ...event, data: JSON.parse(event.data) } : null;
}

/** A WebSocket of the API. A page that holds its key in memory opens it by a ticket, since a browser sends no header. */
export async function openSocket(path: string, query: Query = {}, sessionId = "", token = ""): Promise<WebSocket> {
    const protocols: string[] = [];
    if (token) protocols.push("warren", `warren.token.${token}`);
    else if (memoryKey.value && sessionId) {
        const made = await post<{ ticket: string }>(`/api/sessions/${encodeURIComponent(sessionId)}/tickets`, {});
        const redeemed = await post<{ token: string }>("/api/ui/tickets/redeem", { ticket: made.ticket });
        protocols.push("warren", `warren.token.${redeemed.token}`);
    }
    const url = new URL(address(path, query), location.href);
    url.protocol = url.protocol.replace("http", "ws");
    const socket = new WebSocket(url, protocols);
    socket.binaryType = "arraybuffer";
    return socket;
}

/** Sends a file, and says meanwhile how many of its bytes were sent: fetch cannot. */
export function upload(
    path: string,
    query: Query,
    file: Blob,
    onProgress: (sent: number) => void,
    signal: AbortSignal,
): Promise<void> {
    return new Promise((resolve, reject) => {
        const sender = new XMLHttpRequest();
        sender.open("PUT", address(path, query));
        sender.setRequestHeader("X-Warren-Page", "1");
        if (memoryKey.value) sender.setRequestHeader("Authorization", `Bearer ${memoryKey.value}`);
        sender.upload.onprogress = (event) => onProgress(event.loaded);
        sender.onerror = () => reject(new ApiError(0, "The server cannot be reached"));
        sender.onabort = () => reject(new ApiError(0, "It was cancelled"));
        sender.onload = async () => {
            if (sender.status >= 200 && sender.status < 300) return resolve();
            const headers = { "Retry-After": sender.getResponseHeader("Retry-After") ?? "" };
            const problem = await readProblem(new Response(sender.responseText, { status: sender.status, headers }));
            if (problem.status === 401) signedOut();
            reject(problem);
        };
        signal.addEventListener("abort", () => sender.abort());
        sender.send(file);
    });
}

/** Saves an answer of the API as a file. */
export async function download(path: string, query: Query, name: string): Promise<void> {
    if (!memoryKey.value) {
        followLink(address(path, query), name);
        return;
    }
    const response = await request("GET", path, { query });
    const url = URL.createObjectURL(await response.blob());
    followLink(url, name);
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

function followLink(href: string, name: string): void {
    const link = document.createElement("a");
    link.href = href;
    link.download = name;
    link.rel = "noopener";
    link.click();
}
