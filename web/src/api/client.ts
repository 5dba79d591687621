// Requests to Warren's API. Every failure is an ApiError whose message can be shown to users.

import { markSignedOut, memoryKey } from "../auth/account";
import { setServerTime } from "../lib/clock";
import type { Problem } from "./schemas";

export class ApiError extends Error {
    constructor(
        readonly status: number,
        message: string,
        readonly remedy = "",
    ) {
        super(message);
    }

    /** Whether the server could not be reached, as opposed to having refused the request. */
    get isUnavailable(): boolean {
        return this.status === 0 || this.status === 502 || this.status === 503 || this.status === 504;
    }
}

export type Query = Record<string, string | number | boolean | readonly string[] | undefined>;

export interface RequestOptions {
    query?: Query;
    body?: unknown; // sent as JSON, unless it is a Blob
    accept?: string;
    range?: string; // bytes=0-9
    lastEventId?: string;
    signal?: AbortSignal;
}

/** Adds a query to a path. Parameters that are undefined or empty are left out. */
export function buildUrl(path: string, query: Query = {}): string {
    const pairs: string[] = [];
    for (const [name, value] of Object.entries(query)) {
        if (value === undefined || value === "") continue;
        for (const item of Array.isArray(value) ? value : [value])
            pairs.push(`${name}=${encodeQueryValue(String(item))}`);
    }
    return pairs.length ? `${path}?${pairs.join("&")}` : path;
}

/** Names of files need not be UTF-8. The API returns their other bytes as lone surrogates, and takes them as bytes. */
function encodeQueryValue(text: string): string {
    return text.replace(/\p{Surrogate}|\P{Surrogate}+/gu, (part) => {
        const code = part.codePointAt(0)!;
        if (code >= 0xdc80 && code <= 0xdcff) return `%${(code - 0xdc00).toString(16).toUpperCase()}`;
        return encodeURIComponent(code >= 0xd800 && code <= 0xdfff ? "\ufffd" : part);
    });
}

/** Builds a path of the API and encodes the values in it: apiPath`/api/sessions/${id}`. */
export function apiPath(texts: TemplateStringsArray, ...values: readonly (string | number)[]): string {
    return texts.reduce((path, text, index) => path + encodeURIComponent(String(values[index - 1])) + text);
}

/** Sends a request and returns the response. Throws an ApiError unless its status says success. */
export async function request(method: string, path: string, options: RequestOptions = {}): Promise<Response> {
    const headers: Record<string, string> = { "X-Warren-Page": "1" };
    let body: BodyInit | undefined;
    if (options.body instanceof Blob) body = options.body;
    else if (options.body !== undefined) {
        headers["Content-Type"] = "application/json";
        body = JSON.stringify(options.body);
    }
    if (options.accept) headers.Accept = options.accept;
    if (options.range) headers.Range = options.range;
    if (options.lastEventId) headers["Last-Event-ID"] = options.lastEventId;
    if (memoryKey.value) headers.Authorization = `Bearer ${memoryKey.value}`;
    let response: Response;
    try {
        response = await fetch(buildUrl(path, options.query), {
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
    setServerTime(response.headers.get("Date"));
    if (response.ok) return response;
    throw readError(response.status, await response.text().catch(() => ""));
}

/** Makes an ApiError of an answer that is not a success. A 401 also shows the sign-in form. */
export function readError(status: number, text: string): ApiError {
    if (status === 401) markSignedOut();
    try {
        const problem: Partial<Problem> = JSON.parse(text);
        return new ApiError(status, String(problem.detail ?? problem.title), problem.remedy);
    } catch {
        return new ApiError(status, `The server answered ${status}`);
    }
}

export async function requestJson<T>(method: string, path: string, options: RequestOptions = {}): Promise<T> {
    const response = await request(method, path, options);
    return (response.status === 204 ? undefined : await response.json()) as T;
}

export const get = <T>(path: string, query?: Query, signal?: AbortSignal) =>
    requestJson<T>("GET", path, { query, signal });
export const post = <T>(path: string, body?: unknown) => requestJson<T>("POST", path, { body });
export const put = <T>(path: string, body?: unknown) => requestJson<T>("PUT", path, { body });
export const patch = <T>(path: string, body?: unknown) => requestJson<T>("PATCH", path, { body });
export const remove = (path: string, query?: Query) => requestJson<void>("DELETE", path, { query });
