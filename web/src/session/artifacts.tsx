// Files of the session that outlive it.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

import { may } from "../account";
import { download, get, path, post, remove, request } from "../api";
import { listen } from "../live";
import type { TabProps } from "../pages/session";
import { Confirm } from "../parts/confirm";
import { Dialog } from "../parts/dialog";
import { linesOf } from "../parts/fields";
import { gathered } from "../parts/gathered";
import { Shown, useLoaded } from "../parts/load";
import { attempt, describe, tell } from "../parts/messages";
import { Table } from "../parts/table";
import { bytes, duration, fullTime, secondsUntil } from "../parts/units";
import { visible } from "../parts/visible";

interface Artifact {
    artifact_id: string;
    name: string;
    path: string | null;
    size: number;
    sha256: string;
    mime_type: string;
    created_at: string;
    expires_at: string;
}

interface Page {
    artifacts: Artifact[];
    next: string | null;
}

interface Saved {
    artifacts: Artifact[];
    left_out: { path: string; why: string }[];
    left_out_count: number;
}

const MOST_SHOWN = 512 * 1024;
const MOST_PICTURE = 16 * 1024 * 1024;
const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];

export function Artifacts({ session }: TabProps) {
    const id = session.session_id;
    const loaded = useLoaded((signal) => get<Page>("/api/artifacts", { session_id: id }, signal), [id]);
    const older = useSignal<Page | null>(null);
    const shown = useSignal<Artifact | null>(null);
    const erased = useSignal<Artifact | null>(null);
    const paths = useSignal("");
    useEffect(() => {
        const reload = gathered(loaded.again);
        const stop = listen((event) => {
            if (event.kind === "gap" || (event.kind.startsWith("artifact.") && event.data.session_id === id))
                reload.ask();
        });
        return () => {
            reload.stop();
            stop();
        };
    }, [id]);

    async function save(event: Event) {
        event.preventDefault();
        await attempt(async () => {
            const saved = await post<Saved>(path`/api/sessions/${id}/artifacts`, { paths: linesOf(paths.value) });
            tell(`Saved: ${saved.artifacts.length} ${saved.artifacts.length === 1 ? "file" : "files"}`);
            const first = saved.left_out[0];
            if (first) tell(`Left out: ${saved.left_out_count}, such as ${visible(first.path)}: ${first.why}`, "error");
            await loaded.again();
        });
    }
    const erase = async (one: Artifact) => {
        await remove(path`/api/artifacts/${one.artifact_id}`);
        if (older.value)
            older.value = {
                ...older.value,
                artifacts: older.value.artifacts.filter((other) => other.artifact_id !== one.artifact_id),
            };
        await loaded.again();
    };
    const more = (after: string) =>
        attempt(async () => {
            const page = await get<Page>("/api/artifacts", { session_id: id, after });
            older.value = { artifacts: [...(older.value?.artifacts ?? []), ...page.artifacts], next: page.next };
        });

    return (
        <>
            {may("files") && (
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
            <Shown of={loaded}>
                {(page) => {
                    const next = older.value ? older.value.next : page.next;
                    return (
                        <>
                            <Table
                                label="Artifacts"
                                rows={unique([...page.artifacts, ...(older.value?.artifacts ?? [])])}
                                keyOf={(one) => one.artifact_id}
                                empty="Nothing is saved yet. What lies in /workspace/artifacts is saved when the session ends."
                                columns={[
                                    {
                                        name: "Name",
                                        show: (one) => <span title={visible(one.path ?? "")}>{visible(one.name)}</span>,
                                    },
                                    { name: "Type", show: (one) => one.mime_type },
                                    { name: "Size", show: (one) => bytes(one.size), right: true },
                                    { name: "Made", show: (one) => fullTime(one.created_at) },
                                    {
                                        name: "Expires",
                                        show: (one) => (
                                            <span title={fullTime(one.expires_at)}>
                                                in {duration(secondsUntil(one.expires_at))}
                                            </span>
                                        ),
                                    },
                                    {
                                        name: "Actions",
                                        show: (one) => (
                                            <span class="actions">
                                                <button
                                                    type="button"
                                                    class="plain small"
                                                    aria-label={`Show ${visible(one.name)}`}
                                                    onClick={() => (shown.value = one)}
                                                >
                                                    Show
                                                </button>
                                                <button
                                                    type="button"
                                                    class="plain small"
                                                    aria-label={`Download ${visible(one.name)}`}
                                                    onClick={() =>
                                                        attempt(() => download(contentOf(one), {}, fileName(one.name)))
                                                    }
                                                >
                                                    Download
                                                </button>
                                                {may("files") && (
                                                    <button
                                                        type="button"
                                                        class="danger small"
                                                        aria-label={`Delete ${visible(one.name)}`}
                                                        onClick={() => (erased.value = one)}
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
                                <button type="button" class="plain" onClick={() => more(next)}>
                                    Older
                                </button>
                            )}
                        </>
                    );
                }}
            </Shown>
            {erased.value && (
                <Confirm
                    title="Delete the artifact"
                    action="Delete"
                    onConfirm={() => erase(erased.value!)}
                    onClose={() => (erased.value = null)}
                >
                    <p>
                        {visible(erased.value.name)}, {bytes(erased.value.size)}, is gone for good then.
                    </p>
                </Confirm>
            )}
            {shown.value && <Content artifact={shown.value} onClose={() => (shown.value = null)} />}
        </>
    );
}

const contentOf = (artifact: Artifact): string => path`/api/artifacts/${artifact.artifact_id}/content`;
const fileName = (name: string): string => name.slice(name.lastIndexOf("/") + 1) || "artifact";

function unique(artifacts: readonly Artifact[]): Artifact[] {
    return [...new Map(artifacts.map((one) => [one.artifact_id, one])).values()];
}

/** Pictures as pictures, everything else as text, whatever it says it is: never as markup. */
function Content({ artifact, onClose }: { artifact: Artifact; onClose: () => void }) {
    const text = useSignal("");
    const picture = useSignal("");
    const problem = useSignal("");
    useEffect(() => {
        const stop = new AbortController();
        let url = "";
        async function load() {
            const isPicture = PICTURES.includes(artifact.mime_type);
            if (isPicture && artifact.size > MOST_PICTURE) {
                problem.value = "The picture is too large to be shown here. Download it.";
                return;
            }
            const response = await request("GET", contentOf(artifact), { signal: stop.signal });
            if (isPicture) {
                url = URL.createObjectURL(new Blob([await response.arrayBuffer()], { type: artifact.mime_type }));
                picture.value = url;
            } else text.value = await readBeginning(response, artifact.size);
        }
        load().catch((error) => stop.signal.aborted || (problem.value = describe(error)));
        return () => {
            stop.abort();
            if (url) URL.revokeObjectURL(url);
        };
    }, [artifact.artifact_id]);
    return (
        <Dialog title={visible(artifact.name)} onClose={onClose}>
            {problem.value && (
                <p class="note error" role="alert">
                    {problem.value}
                </p>
            )}
            {picture.value && <img class="picture" src={picture.value} alt={visible(artifact.name)} />}
            {text.value && (
                <pre class="shown" tabIndex={0}>
                    {text.value}
                </pre>
            )}
            <p class="note mono">
                {bytes(artifact.size)} · SHA-256 {artifact.sha256}
            </p>
        </Dialog>
    );
}

async function readBeginning(response: Response, size: number): Promise<string> {
    const reader = response.body!.getReader();
    const decoder = new TextDecoder();
    let text = "";
    while (text.length < MOST_SHOWN) {
        const { done, value } = await reader.read();
        if (done) return text + decoder.decode() || "(empty)";
        if (text === "" && value.subarray(0, 8000).includes(0)) {
            reader.cancel().catch(() => undefined);
            return "This is not text. Download it.";
        }
        text += decoder.decode(value, { stream: true });
    }
    reader.cancel().catch(() => undefined);
    return `${text.slice(0, MOST_SHOWN)}\n… (the beginning of ${bytes(size)})`;
}
