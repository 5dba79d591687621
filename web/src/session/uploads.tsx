// Files on their way into a session: one after another, with how far they are.

import { type Signal, signal } from "@preact/signals";

import { post, upload } from "../api";
import { describe } from "../parts/messages";
import { bytes } from "../parts/units";
import { visible } from "../parts/visible";

/** `path` is relative to the directory they go to; a directory of its own has no file. */
export interface Incoming {
    path: string;
    file: File | null;
}

interface Failure {
    path: string;
    why: string;
}

const MOST_FAILURES = 20; // that are shown

export class Uploads {
    readonly current = signal("");
    readonly files = signal(0);
    readonly filesDone = signal(0);
    readonly bytes = signal(0);
    readonly bytesDone = signal(0);
    readonly failures: Signal<readonly Failure[]> = signal([]);
    readonly isBusy = signal(false);
    private readonly queue: { directory: string; incoming: Incoming }[] = [];
    private stop = new AbortController();

    /** `place` is the session's address; `onDone` is called for each directory that got something. */
    constructor(
        private readonly place: string,
        private readonly onDone: (directory: string) => void,
    ) {}

    add(directory: string, all: readonly Incoming[]): void {
        this.queue.push(...all.map((incoming) => ({ directory, incoming })));
        this.files.value += all.length;
        this.bytes.value += all.reduce((sum, one) => sum + (one.file?.size ?? 0), 0);
        if (!this.isBusy.value) this.run();
    }

    cancel(): void {
        this.queue.length = 0;
        this.stop.abort();
    }

    private async run(): Promise<void> {
        this.isBusy.value = true;
        this.failures.value = [];
        this.stop = new AbortController();
        const changed = new Set<string>();
        for (let next = this.queue.shift(); next; next = this.queue.shift()) {
            const { directory, incoming } = next;
            changed.add(directory);
            this.current.value = incoming.path;
            const before = this.bytesDone.value;
            try {
                await this.send(
                    `${directory}/${incoming.path}`,
                    incoming.file,
                    (sent) => (this.bytesDone.value = before + sent),
                );
            } catch (error) {
                this.failures.value = [...this.failures.value, { path: incoming.path, why: describe(error) }].slice(
                    -MOST_FAILURES,
                );
            }
            this.bytesDone.value = before + (incoming.file?.size ?? 0);
            this.filesDone.value += 1;
        }
        for (const part of [this.files, this.filesDone, this.bytes, this.bytesDone]) part.value = 0;
        this.isBusy.value = false;
        for (const directory of changed) this.onDone(directory);
    }

    private async send(path: string, file: File | null, onProgress: (sent: number) => void): Promise<void> {
        if (file) await upload(`${this.place}/files/content`, { path }, file, onProgress, this.stop.signal);
        else await post(`${this.place}/files/mkdir`, { path, exist_ok: true });
    }
}

export function UploadProgress({ of }: { of: Uploads }) {
    if (!of.isBusy.value && of.failures.value.length === 0) return null;
    return (
        <div class="card" role="status" aria-live="polite">
            {of.isBusy.value && (
                <ul class="uploads">
                    <li>
                        <span class="file-path">{visible(of.current.value)}</span>
                        <progress aria-label="Sent" max={Math.max(1, of.bytes.value)} value={of.bytesDone.value} />
                        <button type="button" class="plain small" onClick={() => of.cancel()}>
                            Cancel
                        </button>
                    </li>
                    <li>
                        <small>
                            {of.filesDone.value} of {of.files.value} files, {bytes(of.bytesDone.value)} of{" "}
                            {bytes(of.bytes.value)}
                        </small>
                    </li>
                </ul>
            )}
            {of.failures.value.map((one) => (
                <p key={one.path} class="note error">
                    {visible(one.path)}: {one.why}
                </p>
            ))}
            {!of.isBusy.value && (
                <button type="button" class="plain small" onClick={() => (of.failures.value = [])}>
                    Dismiss
                </button>
            )}
        </div>
    );
}

/** What was chosen by a button: with a folder each file has its path in it. */
export function chosenFiles(list: FileList): Incoming[] {
    return [...list].map((file) => ({ path: file.webkitRelativePath || file.name, file }));
}

/** What was dropped, with everything in folders. The items must be read before the event is over. */
export async function droppedFiles(items: DataTransferItemList): Promise<Incoming[]> {
    const found: Incoming[] = [];
    const entries: FileSystemEntry[] = [];
    for (const item of items) {
        const entry = item.webkitGetAsEntry();
        const file = item.getAsFile();
        if (entry) entries.push(entry);
        else if (file) found.push({ path: file.name, file });
    }
    for (const entry of entries) await gather(entry, found);
    return found;
}

async function gather(entry: FileSystemEntry, found: Incoming[]): Promise<void> {
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
        for (const one of more) await gather(one, found);
    }
}
