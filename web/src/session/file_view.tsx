// The file that is selected: an editor for text, or a picture.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

import { get, request, requestJson } from "../api/client";
import type { FileView } from "../api/schemas";
import { download } from "../api/transfers";
import { Dialog } from "../components/dialog";
import { CheckboxField } from "../components/fields";
import { notify, runAction } from "../components/notifications";
import { RequestView, useRequest } from "../components/request";
import { escapeName } from "../lib/escape";
import { formatBytes, formatDateTime } from "../lib/format";
import { type DecodedText, decodeText, unreadable } from "./text_file";

const MAX_TEXT = 1024 * 1024;
const MAX_PICTURE = 20 * 1024 * 1024;
const PICTURE_TYPES: Record<string, string> = {
    png: "image/png",
    jpg: "image/jpeg",
    jpeg: "image/jpeg",
    gif: "image/gif",
    webp: "image/webp",
    svg: "image/svg+xml", // as an image it runs no script and loads nothing
};

/** The text of a file, with the file as it was when it was read. */
interface LoadedText extends DecodedText {
    info: FileView;
}

interface Props {
    sessionUrl: string;
    info: FileView;
    onSaved: () => void;
    /** Called to show the file anew, after somebody else has changed it. */
    onReload: () => void;
    /** Called with whether there are changes that are not saved. */
    onDirty: (isDirty: boolean) => void;
}

export function FilePanel(props: Props) {
    const { sessionUrl, info } = props;
    const saved = useSignal<FileView | null>(null);
    useEffect(() => {
        saved.value = null;
    }, [info]);
    const current = saved.value ?? info;
    const pictureType = PICTURE_TYPES[info.name.toLowerCase().split(".").pop() ?? ""] ?? "";
    const showText = useSignal(false);
    const isPicture = pictureType !== "" && !showText.value && info.size <= MAX_PICTURE;
    return (
        <section class="file-view" aria-label={`File ${escapeName(info.name)}`}>
            <h2 class="file-path">{escapeName(info.path)}</h2>
            <p class="note">
                {formatBytes(current.size)}, mode {current.mode}, changed {formatDateTime(current.modified)}
            </p>
            {pictureType === "image/svg+xml" && (
                <CheckboxField
                    label="Show its text"
                    checked={showText.value}
                    onChange={(checked) => (showText.value = checked)}
                />
            )}
            {isPicture ? (
                <Picture sessionUrl={sessionUrl} info={info} pictureType={pictureType} />
            ) : (
                <TextView {...props} onWritten={(written) => (saved.value = written)} />
            )}
        </section>
    );
}

function Picture({ sessionUrl, info, pictureType }: { sessionUrl: string; info: FileView; pictureType: string }) {
    const loaded = useRequest(
        async (signal) => {
            const content = await (
                await request("GET", `${sessionUrl}/files/content`, { query: { path: info.path }, signal })
            ).arrayBuffer();
            return URL.createObjectURL(new Blob([content], { type: pictureType }));
        },
        [info.path, info.modified],
    );
    const isBroken = useSignal(false);
    useEffect(
        () => () => {
            if (loaded.data.value) URL.revokeObjectURL(loaded.data.value);
        },
        [loaded.data.value],
    );
    return (
        <RequestView request={loaded}>
            {(url) =>
                isBroken.value ? (
                    <p class="note">It is not a picture that a browser can show.</p>
                ) : (
                    <img src={url} alt={escapeName(info.name)} onError={() => (isBroken.value = true)} />
                )
            }
        </RequestView>
    );
}

type EditorProps = Props & { onWritten: (info: FileView) => void };

function TextView(props: EditorProps) {
    const { sessionUrl, info } = props;
    const loaded = useRequest((signal) => readText(sessionUrl, info, signal), [info.path, info.modified, info.size]);
    return (
        <RequestView request={loaded}>
            {(text) => <Editor key={`${text.info.size} ${text.info.modified}`} {...props} loaded={text} />}
        </RequestView>
    );
}

async function readText(sessionUrl: string, info: FileView, signal: AbortSignal): Promise<LoadedText> {
    if (info.kind !== "file") return { info, ...unreadable("It is no file that can be read.") };
    if (info.size === 0) return { info, ...unreadable("") };
    const range = `bytes=0-${MAX_TEXT - 1}`;
    const content = new Uint8Array(
        await (
            await request("GET", `${sessionUrl}/files/content`, { query: { path: info.path }, range, signal })
        ).arrayBuffer(),
    );
    return { info, ...decodeText(content, info.size) };
}

function Editor({ sessionUrl, loaded, onSaved, onReload, onWritten, onDirty }: EditorProps & { loaded: LoadedText }) {
    const savedInfo = useSignal(loaded.info); // of the version that this page has loaded or written
    const savedText = useSignal(loaded.text.replaceAll("\r\n", "\n"));
    const text = useSignal(savedText.value);
    const isBusy = useSignal(false);
    const conflict = useSignal<FileView | null>(null);
    const isDirty = text.value !== savedText.value;
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
        const info = savedInfo.value;
        const written = text.value;
        await runAction(async () => {
            if (!overwrite) {
                const current = await get<FileView>(`${sessionUrl}/files/stat`, { path: info.path }).catch((error) => {
                    if (error.status === 404) return null; // it was removed: saving creates it again
                    throw error;
                });
                if (current && (current.modified !== info.modified || current.size !== info.size)) {
                    conflict.value = current;
                    return;
                }
            }
            const content = new Blob([loaded.newline === "\n" ? written : written.replaceAll("\n", "\r\n")]);
            const query = { path: info.path, mode: info.mode };
            savedInfo.value = await requestJson<FileView>("PUT", `${sessionUrl}/files/content`, {
                query,
                body: content,
            });
            savedText.value = written; // what was typed meanwhile is not saved yet
            notify("Saved.");
            onWritten(savedInfo.value);
            onSaved();
        });
        isBusy.value = false;
    }
    const canEdit = !loaded.readOnlyReason;
    return (
        <>
            {loaded.notices.map((notice) => (
                <p key={notice} class="note">
                    {notice}
                </p>
            ))}
            {loaded.readOnlyReason && <p class="note">{loaded.readOnlyReason}</p>}
            {canEdit && (
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
                            onClick={() => (text.value = savedText.value)}
                        >
                            Undo all
                        </button>
                    </div>
                </>
            )}
            {!canEdit && loaded.text && (
                <pre class="file-text" tabIndex={0}>
                    {loaded.text}
                </pre>
            )}
            {conflict.value && (
                <Dialog title="The file has changed meanwhile" onClose={() => (conflict.value = null)}>
                    <p>
                        Something else wrote it at {formatDateTime(conflict.value.modified)}, after it was loaded here.
                    </p>
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

export function downloadFile(sessionUrl: string, info: FileView): Promise<unknown> {
    const isDirectory = info.kind === "directory";
    return download(
        `${sessionUrl}/files/${isDirectory ? "archive" : "content"}`,
        { path: info.path },
        isDirectory ? `${info.name || "files"}.tar` : info.name,
    );
}
