// The browser of a test, and the server behind its page.

import { createServer, type IncomingMessage, type RequestListener, type Server } from "node:http";
import type { AddressInfo } from "node:net";

import { address, intervals } from "./globals";

export { page } from "./globals";

/** Lets every interval of the page pass once. */
export function passIntervals(): void {
    for (const work of intervals) work();
}

/** Starts a server, which requests of the page go to. */
export async function serve(listener: RequestListener): Promise<Server> {
    const server = createServer(listener);
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    address.origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    return server;
}

export function stop(server: Server): Promise<void> {
    server.closeAllConnections();
    return new Promise((resolve) => server.close(() => resolve()));
}

export async function readBody(request: IncomingMessage): Promise<Record<string, unknown>> {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk);
    return JSON.parse(Buffer.concat(chunks).toString());
}

/** Waits until a condition holds, and fails after ten seconds. */
export async function until(condition: () => boolean): Promise<void> {
    const deadline = Date.now() + 10_000;
    while (!condition()) {
        if (Date.now() > deadline) throw new Error(`it does not happen: ${condition}`);
        await new Promise((resolve) => setTimeout(resolve, 5));
    }
}
