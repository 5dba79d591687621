// The files of a session: a tree that is loaded directory by directory, and beside it the selected file.

import { type Signal, useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";

import { apiPath, get, post, remove } from "../api/client";
import type { FileList, FileView, PathView } from "../api/schemas";
import { ErrorNote } from "../components/error_note";
import { TextField } from "../components/fields";
import { ConfirmDialog, FormDialog } from "../components/form_dialog";
import { errorMessage, notify, runAction } from "../components/notifications";
import { escapeName } from "../lib/escape";
import { formatBytes } from "../lib/format";
import type { TabProps } from "../pages/session";
import { joinPath, parentOf, sortFiles, uploadDirectory } from "./file_paths";
import { downloadFile, FilePanel } from "./file_view";
import { chosenItems, droppedItems, type UploadItem, UploadProgress, Uploads } from "./uploads";

interface Directory {
    files: FileView[] | null; // null while it is loading
    error: string;
    shown: number;
}

type Directories = Readonly<Record<string, Directory>>;
type OpenDialog =
    | { kind: "folder" | "rename" | "delete"; info: FileView }
    | { kind: "overwrite"; directory: string; items: UploadItem[]; names: string[] }
    | { kind: "leave"; proceed: () => void };

const PAGE_SIZE = 300; // entries of a directory that are shown at first

export function FilesTab({ session }: TabProps) {
    const sessionUrl = apiPath`/api/sessions/${session.session_id}`;
    const root = useSignal(session.workspace);
    const directories = useSignal<Directories>({});
    const selected = useSignal<FileView | null>(null);
    const opening = useSignal<FileView | null>(null);
    const dialog = useSignal<OpenDialog | null>(null);
    const isDragging = useSignal(false);
    const isDirty = useRef(false);
    const typedPath = useSignal(session.workspace);
    const uploads = useMemo(() => new Uploads(sessionUrl, load), [sessionUrl]);
    const fileInput = useRef<HTMLInputElement>(null);
    const folderInput = useRef<HTMLInputElement>(null);
    const close = () => (dialog.value = null);

    async function load(directory: string): Promise<void> {
        const before = directories.value[directory];
        change(directories, directory, { files: before?.files ?? null, error: "", shown: before?.shown ?? PAGE_SIZE });
        try {
            const { files } = await get<FileList>(`${sessionUrl}/files`, { path: directory });
            change(directories, directory, { files: sortFiles(files), error: "", shown: before?.shown ?? PAGE_SIZE });
        } catch (failure) {
            change(directories, directory, { files: [], error: errorMessage(failure), shown: 0 });
        }
    }
    useEffect(() => {
        load(root.value);
    }, [root.value]);

    /** Runs `proceed`, after asking if that would lose changes. */
    function leaveFile(proceed: () => void) {
        if (isDirty.current) dialog.value = { kind: "leave", proceed };
        else proceed();
    }
    /** Shows an entry. While it is loading nothing can be edited, and a later selection replaces it. */
    function select(entry: FileView) {
        leaveFile(async () => {
            opening.value = entry;
            await runAction(async () => {
                let info = entry;
                if (info.kind === "symlink") info = await resolveLink(sessionUrl, info);
                if (info.kind !== "directory")
                    info = await get<FileView>(`${sessionUrl}/files/stat`, { path: info.path });
                if (opening.value !== entry) return;
                show(info);
                if (info.kind === "directory") toggle(info.path);
            });
            if (opening.value === entry) opening.value = null; // it failed
        });
    }
    function show(info: FileView | null) {
        opening.value = null;
        selected.value = info;
    }
    function toggle(directory: string) {
        if (directories.value[directory] && directory !== root.value) {
            const { [directory]: _closed, ...others } = directories.value;
            directories.value = others;
        } else load(directory);
    }
    async function refresh(info: FileView) {
        await load(parentOf(info.path));
        const current = await get<FileView>(`${sessionUrl}/files/stat`, { path: info.path }).catch(() => null);
        if (selected.value?.path === info.path) selected.value = current;
    }
    function startUpload(items: UploadItem[]) {
        const directory = uploadDirectory(selected.value, root.value);
        const existing = new Set((directories.value[directory]?.files ?? []).map((file) => file.name));
        const names = [...new Set(items.map((item) => item.path.split("/")[0]!))].filter((name) => existing.has(name));
        if (names.length) dialog.value = { kind: "overwrite", directory, items, names };
        else uploads.add(directory, items);
    }
    async function drop(event: DragEvent) {
        event.preventDefault();
        isDragging.value = false;
        if (!event.dataTransfer) return;
        const items = droppedItems(event.dataTransfer.items);
        await runAction(async () => startUpload(await items));
    }
    async function removeFile(info: FileView) {
        await remove(`${sessionUrl}/files`, { path: info.path, recursive: info.kind === "directory" });
        notify("It was deleted.");
        if (selected.value?.path === info.path) selected.value = null;
        await load(parentOf(info.path));
    }
    const visibleFile = opening.value ? null : selected.value;
    const uploadTarget = uploadDirectory(selected.value, root.value);
    const targetInfo = directoryInfo(uploadTarget);
    return (
        <div>
            <form
                class="row"
                onSubmit={(event) => {
                    event.preventDefault();
                    leaveFile(() => {
                        root.value = typedPath.value || "/";
                        show(null);
                        load(root.value);
                    });
                }}
            >
                <TextField label="Directory" value={typedPath} />
                <button type="submit" class="plain">
                    Show
                </button>
                <span class="grow" />
                <button type="button" class="plain" onClick={() => fileInput.current!.click()}>
                    Upload files
                </button>
                <button type="button" class="plain" onClick={() => folderInput.current!.click()}>
                    Upload a folder
                </button>
                <button
                    type="button"
                    class="plain"
                    onClick={() => (dialog.value = { kind: "folder", info: targetInfo })}
                >
                    New folder
                </button>
                <button type="button" class="plain" onClick={() => downloadFile(sessionUrl, targetInfo)}>
                    Download as tar
                </button>
                <input
                    ref={fileInput}
                    type="file"
                    multiple
                    hidden
                    aria-label="Files to upload"
                    onChange={(event) => handleChosen(event.currentTarget, startUpload)}
                />
                <input
                    ref={folderInput}
                    type="file"
                    multiple
                    hidden
                    aria-label="Folder to upload"
                    {...{ webkitdirectory: true }}
                    onChange={(event) => handleChosen(event.currentTarget, startUpload)}
                />
            </form>
            <p class="note small">
                Uploads and new folders go to <span class="file-path">{escapeName(uploadTarget)}</span>. Files and
                folders can be dropped on the list.
            </p>
            <UploadProgress uploads={uploads} />
            <div class="files">
                <nav
                    class={`file-tree ${isDragging.value ? "over" : ""}`}
                    aria-label="Files"
                    onDragOver={(event) => {
                        event.preventDefault();
                        isDragging.value = true;
                    }}
                    onDragLeave={() => (isDragging.value = false)}
                    onDrop={drop}
                >
                    <div class="file-row">
                        <span class="file-path grow">{escapeName(root.value)}</span>
                        {root.value !== "/" && (
                            <button
                                type="button"
                                class="plain small"
                                onClick={() =>
                                    leaveFile(() => {
                                        root.value = typedPath.value = parentOf(root.value);
                                        show(null);
                                    })
                                }
                            >
                                Up
                            </button>
                        )}
                        <button
                            type="button"
                            class="plain small"
                            onClick={() => Object.keys(directories.value).forEach(load)}
                        >
                            Reload
                        </button>
                    </div>
                    <Tree
                        path={root.value}
                        directories={directories}
                        selected={(opening.value ?? selected.value)?.path ?? ""}
                        onSelect={select}
                    />
                </nav>
                <div>
                    {opening.value && (
                        <p class="note" aria-busy="true">
                            Loading…
                        </p>
                    )}
                    {visibleFile && (
                        <div class="row">
                            <button
                                type="button"
                                class="plain small"
                                onClick={() => downloadFile(sessionUrl, visibleFile)}
                            >
                                {visibleFile.kind === "directory" ? "Download as tar" : "Download"}
                            </button>
                            <button
                                type="button"
                                class="plain small"
                                onClick={() => leaveFile(() => (dialog.value = { kind: "rename", info: visibleFile }))}
                            >
                                Rename
                            </button>
                            <button
                                type="button"
                                class="danger small"
                                onClick={() => (dialog.value = { kind: "delete", info: visibleFile })}
                            >
                                Delete
                            </button>
                        </div>
                    )}
                    {visibleFile?.kind === "directory" && <p class="file-path">{escapeName(visibleFile.path)}</p>}
                    {visibleFile && visibleFile.kind !== "directory" && (
                        <FilePanel
                            key={visibleFile.path}
                            sessionUrl={sessionUrl}
                            info={visibleFile}
                            onSaved={() => load(parentOf(visibleFile.path))}
                            onReload={() => refresh(visibleFile)}
                            onDirty={(value) => (isDirty.current = value)}
                        />
                    )}
                    {!opening.value && !visibleFile && <p class="note">Choose a file to see it.</p>}
                </div>
            </div>
            <FileDialogs
                dialog={dialog.value}
                close={close}
                sessionUrl={sessionUrl}
                onMade={(directory) => load(directory)}
                onRenamed={(from, to) => {
                    show(to);
                    load(parentOf(from.path));
                    if (parentOf(from.path) !== parentOf(to.path)) load(parentOf(to.path));
                }}
                onDelete={removeFile}
                onOverwrite={(directory, items) => uploads.add(directory, items)}
                onLeave={() => (isDirty.current = false)}
            />
        </div>
    );
}

interface TreeProps {
    path: string;
    directories: Signal<Directories>;
    selected: string;
    onSelect: (info: FileView) => void;
}

function Tree({ path, directories, selected, onSelect }: TreeProps) {
    const directory = directories.value[path];
    if (!directory || directory.files === null)
        return (
            <p class="note" aria-busy="true">
                Loading…
            </p>
        );
    if (directory.error) return <ErrorNote text={directory.error} />;
    if (directory.files.length === 0) return <p class="note">It is empty.</p>;
    const more = directory.files.length - directory.shown;
    return (
        <ul>
            {directory.files.slice(0, directory.shown).map((file) => {
                const isOpen = file.kind === "directory" && directories.value[file.path] !== undefined;
                return (
                    <li key={file.path}>
                        <div class={`file-row ${file.path === selected ? "chosen" : ""}`}>
                            <span aria-hidden="true">
                                {file.kind === "directory" ? (isOpen ? "▾" : "▸") : file.kind === "symlink" ? "↪" : "·"}
                            </span>
                            <button
                                type="button"
                                class="name"
                                aria-expanded={file.kind === "directory" ? isOpen : undefined}
                                aria-current={file.path === selected ? "true" : undefined}
                                onClick={() => onSelect(file)}
                            >
                                {escapeName(file.name)}
                                {file.kind === "directory" ? "/" : ""}
                                {file.target !== null && <small>{` → ${escapeName(file.target)}`}</small>}
                            </button>
                            {file.kind === "file" && <small>{formatBytes(file.size)}</small>}
                        </div>
                        {isOpen && (
                            <Tree path={file.path} directories={directories} selected={selected} onSelect={onSelect} />
                        )}
                    </li>
                );
            })}
            {more > 0 && (
                <li>
                    <button
                        type="button"
                        class="plain small"
                        onClick={() => change(directories, path, { ...directory, shown: directory.shown + PAGE_SIZE })}
                    >
                        Show more ({more} are left)
                    </button>
                </li>
            )}
        </ul>
    );
}

interface FileDialogsProps {
    dialog: OpenDialog | null;
    close: () => void;
    sessionUrl: string;
    onMade: (directory: string) => void;
    onRenamed: (from: FileView, to: FileView) => void;
    onDelete: (info: FileView) => Promise<void>;
    onOverwrite: (directory: string, items: UploadItem[]) => void;
    onLeave: () => void;
}

function FileDialogs({
    dialog,
    close,
    sessionUrl,
    onMade,
    onRenamed,
    onDelete,
    onOverwrite,
    onLeave,
}: FileDialogsProps) {
    if (!dialog) return null;
    if (dialog.kind === "delete") {
        return (
            <ConfirmDialog title="Delete it?" action="Delete" onConfirm={() => onDelete(dialog.info)} onClose={close}>
                <p>
                    <span class="file-path">{escapeName(dialog.info.path)}</span>
                    {dialog.info.kind === "directory" && " and everything in it"}
                </p>
            </ConfirmDialog>
        );
    }
    if (dialog.kind === "overwrite") {
        return (
            <ConfirmDialog
                title="Overwrite what is there?"
                action="Overwrite"
                onConfirm={async () => onOverwrite(dialog.directory, dialog.items)}
                onClose={close}
            >
                <p>
                    These are in <span class="file-path">{escapeName(dialog.directory)}</span> already:{" "}
                    {dialog.names.slice(0, 10).map(escapeName).join(", ")}
                    {dialog.names.length > 10 && " and more"}.
                </p>
            </ConfirmDialog>
        );
    }
    if (dialog.kind === "leave") {
        return (
            <ConfirmDialog
                title="Leave without saving?"
                action="Leave"
                onConfirm={async () => {
                    onLeave();
                    dialog.proceed();
                }}
                onClose={close}
            >
                <p>What you changed in the file is lost.</p>
            </ConfirmDialog>
        );
    }
    if (dialog.kind === "folder") {
        return (
            <NameDialog
                title="New folder"
                name=""
                onClose={close}
                onName={async (name) => {
                    await post(`${sessionUrl}/files/mkdir`, { path: joinPath(dialog.info.path, name) });
                    onMade(dialog.info.path);
                }}
            >
                <p>
                    In <span class="file-path">{escapeName(dialog.info.path)}</span>
                </p>
            </NameDialog>
        );
    }
    const { info } = dialog;
    return (
        <NameDialog
            title="Rename"
            name={escapeName(info.name) === info.name ? info.name : ""}
            onClose={close}
            onName={async (name) => {
                onRenamed(
                    info,
                    await post<FileView>(`${sessionUrl}/files/move`, {
                        source: info.path,
                        target: joinPath(parentOf(info.path), name),
                    }),
                );
            }}
        >
            <p class="file-path">{escapeName(info.path)}</p>
        </NameDialog>
    );
}

interface NameDialogProps {
    title: string;
    name: string;
    onName: (name: string) => Promise<void>;
    onClose: () => void;
    children: ComponentChildren;
}

function NameDialog({ title, name, onName, onClose, children }: NameDialogProps) {
    const value = useSignal(name);
    return (
        <FormDialog title={title} submitLabel={title} onSubmit={() => onName(value.value)} onClose={onClose}>
            {children}
            <TextField label="Name" value={value} required />
        </FormDialog>
    );
}

function change(directories: Signal<Directories>, path: string, directory: Directory): void {
    directories.value = { ...directories.value, [path]: directory };
}

/** Returns the target of a symbolic link. */
async function resolveLink(sessionUrl: string, info: FileView): Promise<FileView> {
    const { path } = await get<PathView>(`${sessionUrl}/files/realpath`, { path: info.path });
    return await get<FileView>(`${sessionUrl}/files/stat`, { path });
}

function handleChosen(input: HTMLInputElement, startUpload: (items: UploadItem[]) => void): void {
    if (input.files?.length) startUpload(chosenItems(input.files));
    input.value = "";
}

/** Describes a directory of which only the path is known. */
function directoryInfo(path: string): FileView {
    return {
        path,
        name: path.split("/").pop() ?? "",
        kind: "directory",
        size: 0,
        mode: "0755",
        uid: 0,
        gid: 0,
        modified: "",
        target: null,
    };
}
