// The files of a session: a tree that is loaded directory by directory, and the file that was chosen beside it.

import { type Signal, useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";

import { get, path, post, remove } from "../api";
import type { TabProps } from "../pages/session";
import { Confirm } from "../parts/confirm";
import { Dialog } from "../parts/dialog";
import { TextField } from "../parts/fields";
import { attempt, describe, tell } from "../parts/messages";
import { bytes } from "../parts/units";
import { visible } from "../parts/visible";
import type { FileInfo } from "../types";
import { downloadFile, FileView } from "./file_view";
import { chosenFiles, droppedFiles, type Incoming, UploadProgress, Uploads } from "./uploads";

interface Directory {
    files: FileInfo[] | null; // null while it is loaded
    error: string;
    shown: number;
}

type Directories = Readonly<Record<string, Directory>>;
type Asked =
    | { what: "folder" | "rename" | "delete"; info: FileInfo }
    | { what: "overwrite"; directory: string; incoming: Incoming[]; names: string[] }
    | { what: "leave"; go: () => void };

const AT_ONCE = 300; // entries of a directory

export function Files({ session }: TabProps) {
    const place = path`/api/sessions/${session.session_id}`;
    const root = useSignal(session.workspace);
    const directories = useSignal<Directories>({});
    const chosen = useSignal<FileInfo | null>(null);
    const opening = useSignal<FileInfo | null>(null);
    const asked = useSignal<Asked | null>(null);
    const isOver = useSignal(false);
    const isDirty = useRef(false);
    const goTo = useSignal(session.workspace);
    const uploads = useMemo(() => new Uploads(place, load), [place]);
    const fileInput = useRef<HTMLInputElement>(null);
    const folderInput = useRef<HTMLInputElement>(null);
    const close = () => (asked.value = null);

    async function load(directory: string): Promise<void> {
        const before = directories.value[directory];
        change(directories, directory, { files: before?.files ?? null, error: "", shown: before?.shown ?? AT_ONCE });
        try {
            const { files } = await get<{ files: FileInfo[] }>(`${place}/files`, { path: directory });
            files.sort(
                (one, other) =>
                    Number(other.kind === "directory") - Number(one.kind === "directory") ||
                    (one.name < other.name ? -1 : 1),
            );
            change(directories, directory, { files, error: "", shown: before?.shown ?? AT_ONCE });
        } catch (failure) {
            change(directories, directory, { files: [], error: describe(failure), shown: 0 });
        }
    }
    useEffect(() => {
        load(root.value);
    }, [root.value]);

    /** Does something unless what is edited would be lost; then it asks. */
    function leave(go: () => void) {
        if (isDirty.current) asked.value = { what: "leave", go };
        else go();
    }
    /** While an entry is looked up, nothing can be edited: it would be the file before. Only the last choice counts. */
    function choose(entry: FileInfo) {
        leave(async () => {
            opening.value = entry;
            await attempt(async () => {
                let info = entry;
                if (info.kind === "symlink") info = await follow(place, info);
                if (info.kind !== "directory") info = await get<FileInfo>(`${place}/files/stat`, { path: info.path });
                if (opening.value !== entry) return;
                show(info);
                if (info.kind === "directory") toggle(info.path);
            });
            if (opening.value === entry) opening.value = null; // it failed
        });
    }
    function show(info: FileInfo | null) {
        opening.value = null;
        chosen.value = info;
    }
    function toggle(directory: string) {
        if (directories.value[directory] && directory !== root.value) {
            const { [directory]: _, ...others } = directories.value;
            directories.value = others;
        } else load(directory);
    }
    async function refresh(info: FileInfo) {
        await load(parentOf(info.path));
        const again = await get<FileInfo>(`${place}/files/stat`, { path: info.path }).catch(() => null);
        if (chosen.value?.path === info.path) chosen.value = again;
    }
    function receive(incoming: Incoming[]) {
        const directory = targetOf(chosen.value, root.value);
        const there = new Set((directories.value[directory]?.files ?? []).map((one) => one.name));
        const names = [...new Set(incoming.map((one) => one.path.split("/")[0]!))].filter((name) => there.has(name));
        if (names.length) asked.value = { what: "overwrite", directory, incoming, names };
        else uploads.add(directory, incoming);
    }
    async function drop(event: DragEvent) {
        event.preventDefault();
        isOver.value = false;
        if (!event.dataTransfer) return;
        const incoming = droppedFiles(event.dataTransfer.items);
        await attempt(async () => receive(await incoming));
    }
    async function removeFile(info: FileInfo) {
        await remove(`${place}/files`, { path: info.path, recursive: info.kind === "directory" });
        tell("It was deleted.");
        if (chosen.value?.path === info.path) chosen.value = null;
        await load(parentOf(info.path));
    }
    const shown = opening.value ? null : chosen.value;
    const target = targetOf(chosen.value, root.value);
    const here = rootInfo(target);
    return (
        <div>
            <form
                class="row"
                onSubmit={(event) => {
                    event.preventDefault();
                    leave(() => {
                        root.value = goTo.value || "/";
                        show(null);
                        load(root.value);
                    });
                }}
            >
                <TextField label="Directory" value={goTo} />
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
                <button type="button" class="plain" onClick={() => (asked.value = { what: "folder", info: here })}>
                    New folder
                </button>
                <button type="button" class="plain" onClick={() => downloadFile(place, here)}>
                    Download as tar
                </button>
                <input
                    ref={fileInput}
                    type="file"
                    multiple
                    hidden
                    aria-label="Files to upload"
                    onChange={(event) => takeChosen(event.currentTarget, receive)}
                />
                <input
                    ref={folderInput}
                    type="file"
                    multiple
                    hidden
                    aria-label="Folder to upload"
                    {...{ webkitdirectory: true }}
                    onChange={(event) => takeChosen(event.currentTarget, receive)}
                />
            </form>
            <p class="note small">
                Uploads and new folders go to <span class="file-path">{visible(target)}</span>. Files and folders can be
                dropped on the list.
            </p>
            <UploadProgress of={uploads} />
            <div class="files">
                <nav
                    class={`file-tree ${isOver.value ? "over" : ""}`}
                    aria-label="Files"
                    onDragOver={(event) => {
                        event.preventDefault();
                        isOver.value = true;
                    }}
                    onDragLeave={() => (isOver.value = false)}
                    onDrop={drop}
                >
                    <div class="file-row">
                        <span class="file-path grow">{visible(root.value)}</span>
                        {root.value !== "/" && (
                            <button
                                type="button"
                                class="plain small"
                                onClick={() =>
                                    leave(() => {
                                        root.value = goTo.value = parentOf(root.value);
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
                        chosen={(opening.value ?? chosen.value)?.path ?? ""}
                        onChoose={choose}
                    />
                </nav>
                <div>
                    {opening.value && (
                        <p class="note" aria-busy="true">
                            Loading…
                        </p>
                    )}
                    {shown && (
                        <div class="row">
                            <button type="button" class="plain small" onClick={() => downloadFile(place, shown)}>
                                {shown.kind === "directory" ? "Download as tar" : "Download"}
                            </button>
                            <button
                                type="button"
                                class="plain small"
                                onClick={() => leave(() => (asked.value = { what: "rename", info: shown }))}
                            >
                                Rename
                            </button>
                            <button
                                type="button"
                                class="danger small"
                                onClick={() => (asked.value = { what: "delete", info: shown })}
                            >
                                Delete
                            </button>
                        </div>
                    )}
                    {shown?.kind === "directory" && <p class="file-path">{visible(shown.path)}</p>}
                    {shown && shown.kind !== "directory" && (
                        <FileView
                            key={shown.path}
                            place={place}
                            info={shown}
                            onSaved={() => load(parentOf(shown.path))}
                            onReload={() => refresh(shown)}
                            onDirty={(value) => (isDirty.current = value)}
                        />
                    )}
                    {!opening.value && !shown && <p class="note">Choose a file to see it.</p>}
                </div>
            </div>
            <Questions
                asked={asked.value}
                close={close}
                place={place}
                onMade={(directory) => load(directory)}
                onRenamed={(from, to) => {
                    show(to);
                    load(parentOf(from.path));
                    if (parentOf(from.path) !== parentOf(to.path)) load(parentOf(to.path));
                }}
                onDelete={removeFile}
                onOverwrite={(directory, incoming) => uploads.add(directory, incoming)}
                onLeave={() => (isDirty.current = false)}
            />
        </div>
    );
}

interface TreeProps {
    path: string;
    directories: Signal<Directories>;
    chosen: string;
    onChoose: (info: FileInfo) => void;
}

function Tree({ path, directories, chosen, onChoose }: TreeProps) {
    const directory = directories.value[path];
    if (!directory || directory.files === null)
        return (
            <p class="note" aria-busy="true">
                Loading…
            </p>
        );
    if (directory.error)
        return (
            <p class="note error" role="alert">
                {directory.error}
            </p>
        );
    if (directory.files.length === 0) return <p class="note">It is empty.</p>;
    const more = directory.files.length - directory.shown;
    return (
        <ul>
            {directory.files.slice(0, directory.shown).map((one) => {
                const isOpen = one.kind === "directory" && directories.value[one.path] !== undefined;
                return (
                    <li key={one.path}>
                        <div class={`file-row ${one.path === chosen ? "chosen" : ""}`}>
                            <span aria-hidden="true">
                                {one.kind === "directory" ? (isOpen ? "▾" : "▸") : one.kind === "symlink" ? "↪" : "·"}
                            </span>
                            <button
                                type="button"
                                class="name"
                                aria-expanded={one.kind === "directory" ? isOpen : undefined}
                                aria-current={one.path === chosen ? "true" : undefined}
                                onClick={() => onChoose(one)}
                            >
                                {visible(one.name)}
                                {one.kind === "directory" ? "/" : ""}
                                {one.target !== null && <small>{` → ${visible(one.target)}`}</small>}
                            </button>
                            {one.kind === "file" && <small>{bytes(one.size)}</small>}
                        </div>
                        {isOpen && (
                            <Tree path={one.path} directories={directories} chosen={chosen} onChoose={onChoose} />
                        )}
                    </li>
                );
            })}
            {more > 0 && (
                <li>
                    <button
                        type="button"
                        class="plain small"
                        onClick={() => change(directories, path, { ...directory, shown: directory.shown + AT_ONCE })}
                    >
                        Show more ({more} are left)
                    </button>
                </li>
            )}
        </ul>
    );
}

interface QuestionProps {
    asked: Asked | null;
    close: () => void;
    place: string;
    onMade: (directory: string) => void;
    onRenamed: (from: FileInfo, to: FileInfo) => void;
    onDelete: (info: FileInfo) => Promise<void>;
    onOverwrite: (directory: string, incoming: Incoming[]) => void;
    onLeave: () => void;
}

function Questions({ asked, close, place, onMade, onRenamed, onDelete, onOverwrite, onLeave }: QuestionProps) {
    if (!asked) return null;
    if (asked.what === "delete") {
        return (
            <Confirm title="Delete it?" action="Delete" onConfirm={() => onDelete(asked.info)} onClose={close}>
                <p>
                    <span class="file-path">{visible(asked.info.path)}</span>
                    {asked.info.kind === "directory" && " and everything in it"}
                </p>
            </Confirm>
        );
    }
    if (asked.what === "overwrite") {
        return (
            <Confirm
                title="Overwrite what is there?"
                action="Overwrite"
                onConfirm={async () => onOverwrite(asked.directory, asked.incoming)}
                onClose={close}
            >
                <p>
                    These are in <span class="file-path">{visible(asked.directory)}</span> already:{" "}
                    {asked.names.slice(0, 10).map(visible).join(", ")}
                    {asked.names.length > 10 && " and more"}.
                </p>
            </Confirm>
        );
    }
    if (asked.what === "leave") {
        return (
            <Confirm
                title="Leave without saving?"
                action="Leave"
                onConfirm={async () => {
                    onLeave();
                    asked.go();
                }}
                onClose={close}
            >
                <p>What you changed in the file is lost.</p>
            </Confirm>
        );
    }
    if (asked.what === "folder") {
        return (
            <NameDialog
                title="New folder"
                name=""
                onClose={close}
                onName={async (name) => {
                    await post(`${place}/files/mkdir`, { path: join(asked.info.path, name) });
                    onMade(asked.info.path);
                }}
            >
                <p>
                    In <span class="file-path">{visible(asked.info.path)}</span>
                </p>
            </NameDialog>
        );
    }
    const { info } = asked;
    return (
        <NameDialog
            title="Rename"
            name={visible(info.name) === info.name ? info.name : ""}
            onClose={close}
            onName={async (name) => {
                onRenamed(
                    info,
                    await post<FileInfo>(`${place}/files/move`, {
                        source: info.path,
                        target: join(parentOf(info.path), name),
                    }),
                );
            }}
        >
            <p class="file-path">{visible(info.path)}</p>
        </NameDialog>
    );
}

function NameDialog({
    title,
    name,
    onName,
    onClose,
    children,
}: {
    title: string;
    name: string;
    onName: (name: string) => Promise<void>;
    onClose: () => void;
    children: any;
}) {
    const value = useSignal(name);
    const error = useSignal("");
    async function submit(event: Event) {
        event.preventDefault();
        try {
            await onName(value.value);
            onClose();
        } catch (failure) {
            error.value = describe(failure);
        }
    }
    return (
        <Dialog title={title} onClose={onClose}>
            <form onSubmit={submit}>
                {children}
                <TextField label="Name" value={value} required />
                {error.value && (
                    <p class="note error" role="alert">
                        {error.value}
                    </p>
                )}
                <div class="buttons">
                    <button type="button" class="plain" onClick={onClose}>
                        Cancel
                    </button>
                    <button type="submit">{title}</button>
                </div>
            </form>
        </Dialog>
    );
}

function change(directories: Signal<Directories>, path: string, directory: Directory): void {
    directories.value = { ...directories.value, [path]: directory };
}

/** What a link leads to. */
async function follow(place: string, info: FileInfo): Promise<FileInfo> {
    const { path } = await get<{ path: string }>(`${place}/files/realpath`, { path: info.path });
    return await get<FileInfo>(`${place}/files/stat`, { path });
}

function takeChosen(input: HTMLInputElement, receive: (incoming: Incoming[]) => void): void {
    if (input.files?.length) receive(chosenFiles(input.files));
    input.value = "";
}

const join = (directory: string, name: string): string => `${directory.replace(/\/$/, "")}/${name}`;

function parentOf(path: string): string {
    return path.slice(0, path.lastIndexOf("/")) || "/";
}

/** The directory that uploads go to: the chosen one, or that of the chosen file. */
function targetOf(chosen: FileInfo | null, root: string): string {
    if (!chosen) return root;
    return chosen.kind === "directory" ? chosen.path : parentOf(chosen.path);
}

function rootInfo(path: string): FileInfo {
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
