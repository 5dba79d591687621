// Uploads into a session: one file after another, with their progress.

import { type Signal, signal } from "@preact/signals";

import { post } from "../api/client";
import { upload } from "../api/transfers";
import { errorMessage } from "../components/notifications";
import { escapeName } from "../lib/escape";
import { formatBytes } from "../lib/format";

/** A file to upload, or a directory to create if `file` is null. The path is relative to the target directory. */
export interface UploadItem {
    path: string;
    file: File | null;
}

interface Failure {
    path: string;
    reason: string;
}

const MAX_FAILURES = 20; // shown

export class Uploads {
    readonly current = signal("");
    readonly files = signal(0);
    readonly filesDone = signal(0);
    readonly bytes = signal(0);
    readonly bytesDone = signal(0);
    readonly failures: Signal<readonly Failure[]> = signal([]);
    readonly isBusy = signal(false);
    private readonly queue: { directory: string; item: UploadItem }[] = [];
    private controller = new AbortController();

    /** `onDone` is called for each directory that was uploaded to. */
    constructor(
        private readonly sessionUrl: string,
        private readonly onDone: (directory: string) => void,
    ) {}

    add(directory: string, items: readonly UploadItem[]): void {
        this.queue.push(...items.map((item) => ({ directory, item })));
        this.files.value += items.length;
        this.bytes.value += items.reduce((sum, item) => sum + (item.file?.size ?? 0), 0);
        if (!this.isBusy.value) this.run();
    }

    cancel(): void {
        this.queue.length = 0;
        this.controller.abort();
    }

    private async run(): Promise<void> {
        this.isBusy.value = true;
        this.failures.value = [];
        this.controller = new AbortController();
        const changed = new Set<string>();
        for (let next = this.queue.shift(); next; next = this.queue.shift()) {
            const { directory, item } = next;
            changed.add(directory);
            this.current.value = item.path;
            const before = this.bytesDone.value;
            try {
                await this.send(
                    `${directory}/${item.path}`,
                    item.file,
                    (sent) => (this.bytesDone.value = before + sent),
                );
            } catch (error) {
                this.failures.value = [...this.failures.value, { path: item.path, reason: errorMessage(error) }].slice(
                    -MAX_FAILURES,
                );
            }
            this.bytesDone.value = before + (item.file?.size ?? 0);
            this.filesDone.value += 1;
        }
        for (const counter of [this.files, this.filesDone, this.bytes, this.bytesDone]) counter.value = 0;
        this.isBusy.value = false;
        for (const directory of changed) this.onDone(directory);
    }

    private async send(path: string, file: File | null, onProgress: (sent: number) => void): Promise<void> {
        if (file) await upload(`${this.sessionUrl}/files/content`, { path }, file, onProgress, this.controller.signal);
        else await post(`${this.sessionUrl}/files/mkdir`, { path, exist_ok: true });
    }
}

export function UploadProgress({ uploads }: { uploads: Uploads }) {
    if (!uploads.isBusy.value && uploads.failures.value.length === 0) return null;
    return (
        <div class="card" role="status" aria-live="polite">
            {uploads.isBusy.value && (
                <ul class="uploads">
                    <li>
                        <span class="file-path">{escapeName(uploads.current.value)}</span>
                        <progress
                            aria-label="Sent"
                            max={Math.max(1, uploads.bytes.value)}
                            value={uploads.bytesDone.value}
                        />
                        <button type="button" class="plain small" onClick={() => uploads.cancel()}>
                            Cancel
                        </button>
                    </li>
                    <li>
                        <small>
                            {uploads.filesDone.value} of {uploads.files.value} files,{" "}
                            {formatBytes(uploads.bytesDone.value)} of {formatBytes(uploads.bytes.value)}
                        </small>
                    </li>
                </ul>
            )}
            {uploads.failures.value.map((failure) => (
                <p key={failure.path} class="note error">
                    {escapeName(failure.path)}: {failure.reason}
                </p>
            ))}
            {!uploads.isBusy.value && (
                <button type="button" class="plain small" onClick={() => (uploads.failures.value = [])}>
                    Dismiss
                </button>
            )}
        </div>
    );
}

/** Returns the files that an input has. Those of a folder have their path in it. */
export function chosenItems(list: FileList): UploadItem[] {
    return [...list].map((file) => ({ path: file.webkitRelativePath || file.name, file }));
}

/** Returns what was dropped, with all files in folders. It reads the items before its first await, because they are
 *  gone when the event is over. */
export async function droppedItems(items: DataTransferItemList): Promise<UploadItem[]> {
    const found: UploadItem[] = [];
    const entries: FileSystemEntry[] = [];
    for (const item of items) {
        const entry = item.webkitGetAsEntry();
        const file = item.getAsFile();
        if (entry) entries.push(entry);
        else if (file) found.push({ path: file.name, file });
    }
    for (const entry of entries) await collectEntries(entry, found);
    return found;
}

async function collectEntries(entry: FileSystemEntry, found: UploadItem[]): Promise<void> {
    const path = entry.fullPath.replace(/^\//, "");
    if (entry.isFile) {
        found.push({
            path,
            file: await new Promise((resolve, reject) => (entry as FileSystemFileEntry).file(resolve, reject)),
        });
        return;
    }
    found.push({ path, file: null });
    const reader = (entry as FileSystemDirectoryEntry).createReader();
    for (;;) {
        const more = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
        if (more.length === 0) return;
        for (const child of more) await collectEntries(child, found);
    }
}
