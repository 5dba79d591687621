// Artifacts: files of the session that outlive it.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

import { apiPath, get, post, remove, request } from "../api/client";
import type { ArtifactPage, ArtifactView, SavedView } from "../api/schemas";
import { download } from "../api/transfers";
import { hasScope } from "../auth/account";
import { Dialog } from "../components/dialog";
import { ErrorNote } from "../components/error_note";
import { ConfirmDialog } from "../components/form_dialog";
import { errorMessage, notify, runAction } from "../components/notifications";
import { RequestView, useReloadOnEvents, useRequest } from "../components/request";
import { Table } from "../components/table";
import { escapeName } from "../lib/escape";
import { formatBytes, formatDateTime, formatDuration, secondsUntil, splitLines } from "../lib/format";
import type { TabProps } from "../pages/session";

const MAX_TEXT = 512 * 1024;
const MAX_PICTURE = 16 * 1024 * 1024;
const PICTURE_TYPES = ["image/png", "image/jpeg", "image/gif", "image/webp"];

export function ArtifactsTab({ session }: TabProps) {
    const id = session.session_id;
    const loaded = useRequest((signal) => get<ArtifactPage>("/api/artifacts", { session_id: id }, signal), [id]);
    const older = useSignal<ArtifactPage | null>(null);
    const shown = useSignal<ArtifactView | null>(null);
    const deleted = useSignal<ArtifactView | null>(null);
    const paths = useSignal("");
    useReloadOnEvents(loaded.reload, (event) => event.kind.startsWith("artifact.") && event.data.session_id === id, [
        id,
    ]);

    async function save(event: Event) {
        event.preventDefault();
        await runAction(async () => {
            const saved = await post<SavedView>(apiPath`/api/sessions/${id}/artifacts`, {
                paths: splitLines(paths.value),
            });
            notify(`Saved: ${saved.artifacts.length} ${saved.artifacts.length === 1 ? "file" : "files"}`);
            const first = saved.left_out[0];
            if (first)
                notify(`Left out: ${saved.left_out_count}, such as ${escapeName(first.path)}: ${first.why}`, "error");
            await loaded.reload();
        });
    }
    const deleteArtifact = async (artifact: ArtifactView) => {
        await remove(apiPath`/api/artifacts/${artifact.artifact_id}`);
        if (older.value)
            older.value = {
                ...older.value,
                artifacts: older.value.artifacts.filter((other) => other.artifact_id !== artifact.artifact_id),
            };
        await loaded.reload();
    };
    const loadOlder = (after: string) =>
        runAction(async () => {
            const page = await get<ArtifactPage>("/api/artifacts", { session_id: id, after });
            older.value = { artifacts: [...(older.value?.artifacts ?? []), ...page.artifacts], next: page.next };
        });

    return (
        <>
            {hasScope("files") && (
                <form class="row" onSubmit={save}>
                    <label class="grow">
                        Files, directories or globs to save, one in a line
                        <textarea
                            class="mono"
                            rows={2}
                            required
                            placeholder="out/*.png"
                            value={paths.value}
                            spellcheck={false}
                            onInput={(event) => (paths.value = event.currentTarget.value)}
                        />
                    </label>
                    <button type="submit">Save</button>
                </form>
            )}
            <RequestView request={loaded}>
                {(page) => {
                    const next = older.value ? older.value.next : page.next;
                    return (
                        <>
                            <Table
                                label="Artifacts"
                                rows={uniqueArtifacts([...page.artifacts, ...(older.value?.artifacts ?? [])])}
                                keyOf={(artifact) => artifact.artifact_id}
                                empty="Nothing is saved yet. What lies in /workspace/artifacts is saved when the session ends."
                                columns={[
                                    {
                                        name: "Name",
                                        render: (artifact) => (
                                            <span title={escapeName(artifact.path ?? "")}>
                                                {escapeName(artifact.name)}
                                            </span>
                                        ),
                                    },
                                    { name: "Type", render: (artifact) => artifact.mime_type },
                                    { name: "Size", render: (artifact) => formatBytes(artifact.size), right: true },
                                    { name: "Made", render: (artifact) => formatDateTime(artifact.created_at) },
                                    {
                                        name: "Expires",
                                        render: (artifact) => (
                                            <span title={formatDateTime(artifact.expires_at)}>
                                                in {formatDuration(secondsUntil(artifact.expires_at))}
                                            </span>
                                        ),
                                    },
                                    {
                                        name: "Actions",
                                        render: (artifact) => (
                                            <span class="actions">
                                                <button
                                                    type="button"
                                                    class="plain small"
                                                    aria-label={`Show ${escapeName(artifact.name)}`}
                                                    onClick={() => (shown.value = artifact)}
                                                >
                                                    Show
                                                </button>
                                                <button
                                                    type="button"
                                                    class="plain small"
                                                    aria-label={`Download ${escapeName(artifact.name)}`}
                                                    onClick={() =>
                                                        runAction(() =>
                                                            download(contentUrl(artifact), {}, baseName(artifact.name)),
                                                        )
                                                    }
                                                >
                                                    Download
                                                </button>
                                                {hasScope("files") && (
                                                    <button
                                                        type="button"
                                                        class="danger small"
                                                        aria-label={`Delete ${escapeName(artifact.name)}`}
                                                        onClick={() => (deleted.value = artifact)}
                                                    >
                                                        Delete
                                                    </button>
                                                )}
                                            </span>
                                        ),
                                    },
                                ]}
                            />
                            {next && (
                                <button type="button" class="plain" onClick={() => loadOlder(next)}>
                                    Older
                                </button>
                            )}
                        </>
                    );
                }}
            </RequestView>
            {deleted.value && (
                <ConfirmDialog
                    title="Delete the artifact"
                    action="Delete"
                    onConfirm={() => deleteArtifact(deleted.value!)}
                    onClose={() => (deleted.value = null)}
                >
                    <p>
                        {escapeName(deleted.value.name)}, {formatBytes(deleted.value.size)}, is gone for good then.
                    </p>
                </ConfirmDialog>
            )}
            {shown.value && <ContentDialog artifact={shown.value} onClose={() => (shown.value = null)} />}
        </>
    );
}

const contentUrl = (artifact: ArtifactView): string => apiPath`/api/artifacts/${artifact.artifact_id}/content`;
const baseName = (name: string): string => name.slice(name.lastIndexOf("/") + 1) || "artifact";

function uniqueArtifacts(artifacts: readonly ArtifactView[]): ArtifactView[] {
    return [...new Map(artifacts.map((artifact) => [artifact.artifact_id, artifact])).values()];
}

/** Shows pictures as images and everything else as text, whatever its type says; never as markup. */
function ContentDialog({ artifact, onClose }: { artifact: ArtifactView; onClose: () => void }) {
    const text = useSignal("");
    const picture = useSignal("");
    const error = useSignal("");
    useEffect(() => {
        const controller = new AbortController();
        let url = "";
        async function load() {
            const isPicture = PICTURE_TYPES.includes(artifact.mime_type);
            if (isPicture && artifact.size > MAX_PICTURE) {
                error.value = "The picture is too large to be shown here. Download it.";
                return;
            }
            const response = await request("GET", contentUrl(artifact), { signal: controller.signal });
            if (isPicture) {
                url = URL.createObjectURL(new Blob([await response.arrayBuffer()], { type: artifact.mime_type }));
                picture.value = url;
            } else text.value = await readBeginning(response, artifact.size);
        }
        load().catch((failure) => {
            if (!controller.signal.aborted) error.value = errorMessage(failure);
        });
        return () => {
            controller.abort();
            if (url) URL.revokeObjectURL(url);
        };
    }, [artifact.artifact_id]);
    return (
        <Dialog title={escapeName(artifact.name)} onClose={onClose}>
            <ErrorNote text={error.value} />
            {picture.value && <img class="picture" src={picture.value} alt={escapeName(artifact.name)} />}
            {text.value && (
                <pre class="shown" tabIndex={0}>
                    {text.value}
                </pre>
            )}
            <p class="note mono">
                {formatBytes(artifact.size)} · SHA-256 {artifact.sha256}
            </p>
        </Dialog>
    );
}

async function readBeginning(response: Response, size: number): Promise<string> {
    const reader = response.body!.getReader();
    const decoder = new TextDecoder();
    let text = "";
    while (text.length < MAX_TEXT) {
        const { done, value } = await reader.read();
        if (done) return text + decoder.decode() || "(empty)";
        if (text === "" && value.subarray(0, 8000).includes(0)) {
            reader.cancel().catch(() => undefined);
            return "This is not text. Download it.";
        }
        text += decoder.decode(value, { stream: true });
    }
    reader.cancel().catch(() => undefined);
    return `${text.slice(0, MAX_TEXT)}\n… (the beginning of ${formatBytes(size)})`;
}
