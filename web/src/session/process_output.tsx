// The output of a command, on a screen that takes no input.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

import { ApiError } from "../api/client";
import { streamEvents } from "../api/event_stream";
import type { ChunkView } from "../api/schemas";
import { errorMessage, notify } from "../components/notifications";
import { decodeBase64 } from "../lib/base64";
import { escapeName } from "../lib/escape";
import { describeExit } from "../lib/format";
import { createScreen, GAP_NOTICE } from "../terminal/screen";

const RETRY_MS = 2000;

interface Props {
    /** The URL of the process in the API. */
    url: string;
    processId: string;
    onEnd: () => void;
    onClose: () => void;
}

export function ProcessOutput({ url, processId, onEnd, onClose }: Props) {
    const container = useRef<HTMLDivElement>(null);
    const status = useSignal("Reading…");
    useEffect(() => {
        const screen = createScreen(container.current!, {
            readOnly: true,
            screenReader: false,
            onLink: () => notify("Links in the output of commands are not opened."),
        });
        screen.fit.fit();
        screen.terminal.textarea!.setAttribute("aria-label", "Output");
        let offset = 0;
        let controller: AbortController | null = null;
        let isOver = false;
        async function read() {
            if (controller || isOver || document.hidden) return;
            controller = new AbortController();
            const { signal } = controller;
            try {
                const query = { offset, encoding: "base64" };
                for await (const { kind, data } of streamEvents("GET", `${url}/output`, { query, signal })) {
                    if (signal.aborted) return;
                    if (kind === "output") await write(data as unknown as ChunkView);
                    else if (kind === "result" || kind === "error") {
                        isOver = true;
                        status.value = kind === "error" ? String(data.detail) : describeExit(data);
                        onEnd();
                    }
                }
            } catch (failure) {
                if (!signal.aborted) status.value = errorMessage(failure);
                isOver = failure instanceof ApiError && !failure.isUnavailable;
            }
            controller = null;
            if (!isOver && !signal.aborted) setTimeout(read, RETRY_MS);
        }
        async function write(chunk: ChunkView) {
            if (chunk.offset > offset) screen.terminal.write(GAP_NOTICE);
            offset = chunk.next_offset;
            status.value = "It runs.";
            screen.terminal.options.convertEol = chunk.stream !== "terminal";
            await new Promise<void>((resolve) => screen.terminal.write(decodeBase64(chunk.data), resolve));
        }
        // A hidden page reads nothing: browsers slow it down, and a reader that lags behind holds the command back.
        function followVisibility() {
            if (!document.hidden) return read();
            controller?.abort();
            controller = null;
        }
        document.addEventListener("visibilitychange", followVisibility);
        const observer = new ResizeObserver(() => screen.fit.fit());
        observer.observe(container.current!);
        read();
        return () => {
            isOver = true;
            controller?.abort();
            observer.disconnect();
            document.removeEventListener("visibilitychange", followVisibility);
            screen.dispose();
        };
    }, []);
    return (
        <section class="card" aria-label={`Output of ${escapeName(processId)}`}>
            <div class="terminal-bar">
                <h2 class="mono">{escapeName(processId)}</h2>
                <span class="note" role="status">
                    {status.value}
                </span>
                <span class="grow" />
                <button type="button" class="plain small" onClick={onClose}>
                    Close
                </button>
            </div>
            <div ref={container} class="processes-output" />
        </section>
    );
}
