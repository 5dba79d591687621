// One file: text to read and edit, a picture, or what is known about it.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

import { call, download, get, request } from "../api";
import { Dialog } from "../parts/dialog";
import { Shown, useLoaded } from "../parts/load";
import { attempt, tell } from "../parts/messages";
import { bytes, fullTime } from "../parts/units";
import { hasHidden, visible } from "../parts/visible";
import type { FileInfo } from "../types";

const MOST_TEXT = 1024 * 1024;
const MOST_PICTURE = 20 * 1024 * 1024;
const PICTURES: Record<string, string> = {
    png: "image/png",
    jpg: "image/jpeg",
    jpeg: "image/jpeg",
    gif: "image/gif",
    webp: "image/webp",
    svg: "image/svg+xml", // in an img no script of it runs and it loads nothing
};

interface Text {
    /** The file as it was when this was read. */
    info: FileInfo;
    text: string;
    /** Why it cannot be edited; empty if it can. */
    fixed: string;
    notices: string[];
    newline: "\n" | "\r\n";
}

interface Props {
    place: string;
    info: FileInfo;
    onSaved: () => void;
    /** Somebody else has changed it, and that is to be shown. */
    onReload: () => void;
    /** Whether something is changed here and not saved. */
    onDirty: (isDirty: boolean) => void;
}

export function FileView(props: Props) {
    const { place, info } = props;
    const saved = useSignal<FileInfo | null>(null);
    useEffect(() => void (saved.value = null), [info]);
    const now = saved.value ?? info;
    const kind = PICTURES[info.name.toLowerCase().split(".").pop() ?? ""] ?? "";
    const asText = useSignal(false);
    const isPicture = kind !== "" && !asText.value && info.size <= MOST_PICTURE;
    return (
        <section class="file-view" aria-label={`File ${visible(info.name)}`}>
            <h2 class="file-path">{visible(info.path)}</h2>
            <p class="note">
                {bytes(now.size)}, mode {now.mode}, changed {fullTime(now.modified)}
            </p>
            {kind === "image/svg+xml" && (
                <label class="inline">
                    <input
                        type="checkbox"
                        checked={asText.value}
                        onChange={(event) => (asText.value = event.currentTarget.checked)}
                    />
                    Show its text
                </label>
            )}
            {isPicture ? (
                <Picture place={place} info={info} kind={kind} />
            ) : (
                <TextView {...props} onWritten={(written) => (saved.value = written)} />
            )}
        </section>
    );
}

function Picture({ place, info, kind }: { place: string; info: FileInfo; kind: string }) {
    const loaded = useLoaded(
        async (signal) => {
            const content = await (
                await request("GET", `${place}/files/content`, { query: { path: info.path }, signal })
            ).arrayBuffer();
            return URL.createObjectURL(new Blob([content], { type: kind }));
        },
        [info.path, info.modified],
    );
    const broken = useSignal(false);
    useEffect(
        () => () => {
            if (loaded.value.value) URL.revokeObjectURL(loaded.value.value);
        },
        [loaded.value.value],
    );
    return (
        <Shown of={loaded}>
            {(url) =>
                broken.value ? (
                    <p class="note">It is not a picture that a browser can show.</p>
                ) : (
                    <img src={url} alt={visible(info.name)} onError={() => (broken.value = true)} />
                )
            }
        </Shown>
    );
}

type EditorProps = Props & { onWritten: (info: FileInfo) => void };

function TextView(props: EditorProps) {
    const { place, info } = props;
    const loaded = useLoaded((signal) => readText(place, info, signal), [info.path, info.modified, info.size]);
    return (
        <Shown of={loaded}>
            {(found) => <Editor key={`${found.info.size} ${found.info.modified}`} {...props} found={found} />}
        </Shown>
    );
}

async function readText(place: string, info: FileInfo, signal: AbortSignal): Promise<Text> {
    if (info.kind !== "file")
        return { info, text: "", fixed: "It is no file that can be read.", notices: [], newline: "\n" };
    if (info.size === 0) return { info, text: "", fixed: "", notices: [], newline: "\n" };
    const range = `bytes=0-${MOST_TEXT - 1}`;
    const content = new Uint8Array(
        await (
            await request("GET", `${place}/files/content`, { query: { path: info.path }, range, signal })
        ).arrayBuffer(),
    );
    return { info, ...understand(content, info.size) };
}

/** What the bytes of a file are as text, and whether saving them again would leave the rest of it as it is. */
export function understand(content: Uint8Array<ArrayBuffer>, size: number): Omit<Text, "info"> {
    const notices: string[] = [];
    let fixed = "";
    if (content.includes(0))
        return { text: "", fixed: "It is not text. Download it to look at it.", notices, newline: "\n" };
    let text: string;
    const isCut = content.length < size;
    try {
        text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(content, { stream: isCut });
    } catch {
        text = new TextDecoder("latin1").decode(content);
        fixed = "It is not UTF-8. It is shown as Latin-1 and cannot be edited here.";
    }
    if (isCut) fixed = `Only the first ${bytes(content.length)} of ${bytes(size)} are shown.`;
    const newline = text.includes("\r\n") ? "\r\n" : "\n";
    if (newline === "\r\n" ? /[^\r]\n|^\n|\r(?!\n)/.test(text) : text.includes("\r"))
        fixed ||= "Its lines end in different ways. It cannot be edited here.";
    if (newline === "\r\n") notices.push("Its lines end with CR and LF; that stays.");
    if (text.startsWith("\ufeff")) notices.push("It begins with a byte order mark; that stays.");
    if (hasHidden(text)) notices.push("It has characters that hide or reorder others: it may not be what it seems.");
    return { text, fixed, notices, newline };
}

function Editor({ place, found, onSaved, onReload, onWritten, onDirty }: EditorProps & { found: Text }) {
    const known = useSignal(found.info); // the file as this page has loaded or written it
    const original = useSignal(found.text.replaceAll("\r\n", "\n"));
    const text = useSignal(original.value);
    const isBusy = useSignal(false);
    const conflict = useSignal<FileInfo | null>(null);
    const isDirty = text.value !== original.value;
    useEffect(() => onDirty(isDirty), [isDirty]);
    useEffect(() => () => onDirty(false), []);
    useEffect(() => {
        if (!isDirty) return;
        const warn = (event: Event) => event.preventDefault();
        addEventListener("beforeunload", warn);
        return () => removeEventListener("beforeunload", warn);
    }, [isDirty]);

    async function save(overwrite: boolean) {
        isBusy.value = true;
        const info = known.value;
        const written = text.value;
        await attempt(async () => {
            if (!overwrite) {
                const now = await get<FileInfo>(`${place}/files/stat`, { path: info.path }).catch((error) => {
                    if (error.status === 404) return null; // it was removed: saving makes it anew
                    throw error;
                });
                if (now && (now.modified !== info.modified || now.size !== info.size)) {
                    conflict.value = now;
                    return;
                }
            }
            const content = new Blob([found.newline === "\n" ? written : written.replaceAll("\n", "\r\n")]);
            const query = { path: info.path, mode: info.mode };
            known.value = await call<FileInfo>("PUT", `${place}/files/content`, { query, body: content });
            original.value = written; // what was typed meanwhile is still there, and not saved
            tell("Saved.");
            onWritten(known.value);
            onSaved();
        });
        isBusy.value = false;
    }
    const mayEdit = !found.fixed;
    return (
        <>
            {found.notices.map((one) => (
                <p key={one} class="note">
                    {one}
                </p>
            ))}
            {found.fixed && <p class="note">{found.fixed}</p>}
            {mayEdit && (
                <>
                    <label>
                        <span class="note">Text</span>
                        <textarea
                            spellcheck={false}
                            wrap="off"
                            value={text.value}
                            onInput={(event) => (text.value = event.currentTarget.value)}
                        />
                    </label>
                    <div class="row">
                        <button type="button" disabled={!isDirty || isBusy.value} onClick={() => save(false)}>
                            Save
                        </button>
                        <button
                            type="button"
                            class="plain"
                            disabled={!isDirty}
                            onClick={() => (text.value = original.value)}
                        >
                            Undo all
                        </button>
                    </div>
                </>
            )}
            {!mayEdit && found.text && (
                <pre class="file-text" tabIndex={0}>
                    {found.text}
                </pre>
            )}
            {conflict.value && (
                <Dialog title="The file has changed meanwhile" onClose={() => (conflict.value = null)}>
                    <p>Something else wrote it at {fullTime(conflict.value.modified)}, after it was loaded here.</p>
                    <div class="buttons">
                        <button type="button" class="plain" onClick={() => (conflict.value = null)}>
                            Go on editing
                        </button>
                        <button
                            type="button"
                            class="plain"
                            onClick={() => {
                                conflict.value = null;
                                onDirty(false);
                                onReload();
                            }}
                        >
                            Load it, and lose what is here
                        </button>
                        <button
                            type="button"
                            class="danger"
                            onClick={() => {
                                conflict.value = null;
                                save(true);
                            }}
                        >
                            Overwrite it
                        </button>
                    </div>
                </Dialog>
            )}
        </>
    );
}

export function downloadFile(place: string, info: FileInfo): Promise<unknown> {
    const isFolder = info.kind === "directory";
    return download(
        `${place}/files/${isFolder ? "archive" : "content"}`,
        { path: info.path },
        isFolder ? `${info.name || "files"}.tar` : info.name,
    );
}
