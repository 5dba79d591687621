// The log of a session: its newest entries, and those that come, as a stream. It is there after the session, too.

import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";

import { ApiError, apiPath, get, remove } from "../api/client";
import { streamEvents } from "../api/event_stream";
import type { LogEntryView, LogView } from "../api/schemas";
import { saveBlob } from "../api/transfers";
import { hasScope } from "../auth/account";
import { ErrorNote } from "../components/error_note";
import { SelectField, TextField } from "../components/fields";
import { ConfirmDialog } from "../components/form_dialog";
import { errorMessage, runAction } from "../components/notifications";
import { useRequest } from "../components/request";
import { formatBytes, formatDateTime, formatTime } from "../lib/format";
import type { TabProps } from "../pages/session";
import { describeEntry, LOG_KINDS, matches, mergeEntries, printEntry } from "./log_text";

const PAGE_SIZE = 500;
const MAX_ENTRIES = 2000; // that stay on the page while more come
const RETRY_MS = 2000;
const SHOW_MS = 200; // entries that come fast are shown together
const INTERVAL_MS = 10_000;
const NEAR_END = 8; // pixels

export function LogsTab({ session }: TabProps) {
    const url = apiPath`/api/sessions/${session.session_id}/logs`;
    const kinds = useSignal("");
    const search = useSignal("");
    const isDeleting = useSignal(false);
    const times = useSignal(0); // that it was deleted here
    const first = useRequest(
        (signal) => get<LogView>(url, { limit: 1, kinds: kinds.value }, signal),
        [url, kinds.value],
        INTERVAL_MS,
    );
    const log = first.data.value;
    async function removeLog() {
        await remove(url);
        times.value += 1;
        await first.reload();
    }
    return (
        <>
            <div class="row">
                <SelectField
                    label="Show"
                    value={kinds.value}
                    options={LOG_KINDS}
                    onChange={(value) => (kinds.value = value)}
                />
                <TextField label="Search in what is shown" value={search} />
                <span class="grow" />
                <button
                    type="button"
                    class="plain"
                    onClick={() => runAction(() => downloadLog(url, session.session_id))}
                >
                    Download as text
                </button>
                {hasScope("sessions") && (
                    <button type="button" class="danger" onClick={() => (isDeleting.value = true)}>
                        Delete the log
                    </button>
                )}
            </div>
            <ErrorNote text={first.error.value} />
            {log && <LogFacts log={log} />}
            <Entries
                key={`${url} ${kinds.value} ${times.value}`}
                url={url}
                kinds={kinds.value}
                search={search.value}
                oldestId={log?.entries[0]?.id ?? 0}
            />
            {isDeleting.value && (
                <ConfirmDialog
                    title="Delete the log?"
                    action="Delete it"
                    onConfirm={removeLog}
                    onClose={() => (isDeleting.value = false)}
                >
                    <p>What was logged so far is gone for good. A session that runs goes on with an empty log.</p>
                </ConfirmDialog>
            )}
        </>
    );
}

function LogFacts({ log: { level, bytes, expires_at, hint } }: { log: LogView }) {
    if (hint) return <p class="note">Nothing is kept of this session: it was created without a log.</p>;
    const what =
        level === "output" ? "commands, cells and terminals with their output" : "commands, cells and terminals";
    return (
        <p class="note">
            It keeps {what}; {formatBytes(bytes)} so far
            {expires_at && `. It is deleted at ${formatDateTime(expires_at)}`}.
        </p>
    );
}

interface EntriesProps {
    url: string;
    kinds: string;
    search: string;
    /** Of the oldest entry that there is; 0 while it is not known. */
    oldestId: number;
}

function Entries({ url, kinds, search, oldestId }: EntriesProps) {
    const entries = useSignal<readonly LogEntryView[]>([]);
    const limit = useRef(MAX_ENTRIES);
    const status = useSignal("Reading…");
    const box = useRef<HTMLDivElement>(null);
    const isAtEnd = useRef(true);
    useEffect(
        () =>
            followLog(url, kinds, status, (added) => {
                entries.value = mergeEntries(entries.value, added).slice(-limit.current);
            }),
        [],
    );
    const shown = search.trim() ? entries.value.filter((entry) => matches(entry, search)) : entries.value;
    useLayoutEffect(() => {
        if (isAtEnd.current && box.current) box.current.scrollTop = box.current.scrollHeight;
    });
    const firstId = entries.value[0]?.id ?? 0;
    const loadOlder = () =>
        runAction(async () => {
            isAtEnd.current = false;
            const older = await readBefore(url, kinds, firstId, oldestId);
            limit.current += older.length;
            entries.value = mergeEntries(older, entries.value);
        });
    return (
        <>
            {oldestId > 0 && oldestId < firstId && (
                <button type="button" class="plain small" onClick={loadOlder}>
                    Older
                </button>
            )}
            <div
                ref={box}
                class="log"
                role="log"
                aria-label="Log of this session"
                tabIndex={0}
                onScroll={({ currentTarget: { scrollTop, clientHeight, scrollHeight } }) =>
                    (isAtEnd.current = scrollTop + clientHeight >= scrollHeight - NEAR_END)
                }
            >
                {shown.length === 0 && (
                    <p class="note">{search ? "Nothing of that is shown." : "There is nothing yet."}</p>
                )}
                {shown.map((entry) => (
                    <Entry key={entry.id} entry={entry} />
                ))}
            </div>
            <p class="note" role="status">
                {status.value}
            </p>
        </>
    );
}

function Entry({ entry }: { entry: LogEntryView }) {
    const isBad = entry.event === "failed" || !!entry.exit_code || !!entry.error;
    return (
        <div class="log-entry">
            <time dateTime={entry.at} title={formatDateTime(entry.at)}>
                {formatTime(entry.at)}
            </time>
            <span class={`state ${isBad ? "failed" : ""}`}>{entry.stream ?? entry.kind}</span>
            <pre class={entry.stream === "stderr" ? "error" : ""}>
                {entry.missing ? `… ${formatBytes(entry.missing)} before this were not kept\n` : ""}
                {describeEntry(entry)}
            </pre>
        </div>
    );
}

/** Reads the newest entries and those that come, until the function that it returns is called. A hidden page reads
 *  nothing, and goes on where it was. */
function followLog(
    url: string,
    kinds: string,
    status: { value: string },
    onEntries: (added: LogEntryView[]) => void,
): () => void {
    let lastEventId = "";
    let controller: AbortController | null = null;
    let isOver = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let waiting: LogEntryView[] = [];
    function show() {
        timer = undefined;
        onEntries(waiting);
        waiting = [];
    }
    async function read() {
        if (controller || isOver || document.hidden) return;
        const reading = new AbortController();
        controller = reading;
        try {
            const options = { query: { kinds, last: PAGE_SIZE }, lastEventId, signal: reading.signal };
            status.value = "New entries are shown as they come.";
            for await (const event of streamEvents("GET", url, options)) {
                if (event.kind === "end") {
                    isOver = true;
                    status.value = "The session has ended: nothing more comes.";
                } else if (event.kind === "error") throw new Error(String(event.data.detail));
                else if (event.kind === "entry") {
                    lastEventId = event.id;
                    waiting.push(event.data as unknown as LogEntryView);
                    timer ??= setTimeout(show, SHOW_MS);
                }
            }
        } catch (failure) {
            if (!reading.signal.aborted) status.value = errorMessage(failure);
            isOver ||= failure instanceof ApiError && !failure.isUnavailable;
        }
        if (controller !== reading) return;
        controller = null;
        setTimeout(read, RETRY_MS);
    }
    function stop() {
        controller?.abort();
        controller = null;
    }
    const followVisibility = () => (document.hidden ? stop() : read());
    document.addEventListener("visibilitychange", followVisibility);
    read();
    return () => {
        isOver = true;
        stop();
        clearTimeout(timer);
        document.removeEventListener("visibilitychange", followVisibility);
    };
}

/** Returns entries before `firstId`, a page of them or, where they are few, as many as there are. */
async function readBefore(url: string, kinds: string, firstId: number, oldestId: number): Promise<LogEntryView[]> {
    let found: LogEntryView[] = [];
    for (let from = firstId; found.length === 0 && from > oldestId; ) {
        from = Math.max(from - PAGE_SIZE, oldestId);
        found = await readAll(url, { kinds, after: from - 1, limit: PAGE_SIZE }, firstId - 1);
    }
    return found.filter((entry) => entry.id < firstId);
}

async function readAll(url: string, query: { kinds: string; after: number; limit: number }, lastId = Infinity) {
    const found: LogEntryView[] = [];
    for (let after = query.after; after < lastId; ) {
        const page = await get<LogView>(url, { ...query, after });
        found.push(...page.entries);
        if (!page.more) break;
        after = page.next;
    }
    return found;
}

async function downloadLog(url: string, name: string): Promise<void> {
    const entries = await readAll(url, { kinds: "", after: 0, limit: 1000 });
    saveBlob(new Blob(entries.map(printEntry), { type: "text/plain" }), `${name}.log`);
}
