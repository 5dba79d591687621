// Paths of files in a sandbox, and the order in which they are listed.

import type { FileView } from "../api/schemas";

export const joinPath = (directory: string, name: string): string => `${directory.replace(/\/$/, "")}/${name}`;

export const parentOf = (path: string): string => path.slice(0, path.lastIndexOf("/")) || "/";

/** Sorts directories before files, each by name. */
export function sortFiles(files: readonly FileView[]): FileView[] {
    return [...files].sort(
        (one, other) =>
            Number(other.kind === "directory") - Number(one.kind === "directory") || (one.name < other.name ? -1 : 1),
    );
}

/** Returns the directory that uploads go to: the selected one, or the one of the selected file. */
export function uploadDirectory(selected: FileView | null, root: string): string {
    if (!selected) return root;
    return selected.kind === "directory" ? selected.path : parentOf(selected.path);
}
