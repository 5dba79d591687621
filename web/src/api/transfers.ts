// Requests that fetch() cannot make: uploads with progress, downloads to a file, and WebSockets.

import { memoryKey } from "../auth/account";
import { ApiError, apiPath, buildUrl, post, type Query, readError, request } from "./client";
import type { RedeemedView, TicketView } from "./schemas";

/** Opens a WebSocket of the API. A browser sends no Authorization header with it, so a page that holds its key in memory
 *  gets a token for it first, by a ticket. */
export async function openSocket(path: string, query: Query = {}, sessionId = "", token = ""): Promise<WebSocket> {
    const credential = token || (memoryKey.value && sessionId ? await socketToken(sessionId) : "");
    const protocols = credential ? ["warren", `warren.token.${credential}`] : [];
    const url = new URL(buildUrl(path, query), location.href);
    url.protocol = url.protocol.replace("http", "ws");
    const socket = new WebSocket(url, protocols);
    socket.binaryType = "arraybuffer";
    return socket;
}

async function socketToken(sessionId: string): Promise<string> {
    const { ticket } = await post<TicketView>(apiPath`/api/sessions/${sessionId}/tickets`, {});
    return (await post<RedeemedView>("/api/ui/tickets/redeem", { ticket })).token;
}

/** Sends a file and reports how many of its bytes were sent, which fetch() cannot. */
export function upload(
    path: string,
    query: Query,
    file: Blob,
    onProgress: (sent: number) => void,
    signal: AbortSignal,
): Promise<void> {
    return new Promise((resolve, reject) => {
        const xhr = new XMLHttpRequest();
        xhr.open("PUT", buildUrl(path, query));
        xhr.setRequestHeader("X-Warren-Page", "1");
        if (memoryKey.value) xhr.setRequestHeader("Authorization", `Bearer ${memoryKey.value}`);
        xhr.upload.onprogress = (event) => onProgress(event.loaded);
        xhr.onerror = () => reject(new ApiError(0, "The server cannot be reached"));
        xhr.onabort = () => reject(new ApiError(0, "It was cancelled"));
        xhr.onload = () => {
            if (xhr.status >= 200 && xhr.status < 300) resolve();
            else reject(readError(xhr.status, xhr.responseText));
        };
        signal.addEventListener("abort", () => xhr.abort());
        xhr.send(file);
    });
}

/** Saves an answer of the API as a file. */
export async function download(path: string, query: Query, name: string): Promise<void> {
    if (memoryKey.value) saveBlob(await (await request("GET", path, { query })).blob(), name);
    else followDownloadLink(buildUrl(path, query), name);
}

export function saveBlob(blob: Blob, name: string): void {
    const url = URL.createObjectURL(blob);
    followDownloadLink(url, name);
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

function followDownloadLink(href: string, name: string): void {
    const link = document.createElement("a");
    link.href = href;
    link.download = name;
    link.rel = "noopener";
    link.click();
}
