// The snapshots of the tenant: what sessions can start from.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

import { apiPath, get, remove } from "../api/client";
import type { EnvironmentList, SnapshotPage, SnapshotView } from "../api/schemas";
import { download, upload } from "../api/transfers";
import { hasScope, serverInfo } from "../auth/account";
import { TextField } from "../components/fields";
import { ConfirmDialog, FormDialog } from "../components/form_dialog";
import { notify, runAction } from "../components/notifications";
import { RequestView, useReloadOnEvents, useRequest } from "../components/request";
import { ShowMore } from "../components/show_more";
import { Table } from "../components/table";
import { useTitle } from "../components/use_title";
import { escapeName } from "../lib/escape";
import { formatBytes, formatDateTime, formatDuration, formatValues, MIB, percent, secondsUntil } from "../lib/format";
import { CreateSessionDialog } from "./create_session_dialog";

const PAGE_SIZE = 50;

type OpenDialog = { kind: "upload" } | { kind: "start" | "delete"; snapshot: SnapshotView };

export function SnapshotsPage() {
    useTitle("Snapshots");
    const limit = useSignal(PAGE_SIZE);
    const dialog = useSignal<OpenDialog | null>(null);
    const page = useRequest(
        (signal) => get<SnapshotPage>("/api/snapshots", { limit: limit.value }, signal),
        [limit.value],
    );
    const environments = useRequest((signal) => get<EnvironmentList>("/api/environments", {}, signal), []);
    useReloadOnEvents(page.reload, (event) => event.kind.startsWith("snapshot."), [limit.value]);
    const close = () => (dialog.value = null);
    const names = new Map(page.data.value?.snapshots.map(({ snapshot_id, name }) => [snapshot_id, name]));
    return (
        <section aria-labelledby="title">
            <div class="title">
                <h1 id="title">Snapshots</h1>
                {hasScope("files") && (
                    <button type="button" onClick={() => (dialog.value = { kind: "upload" })}>
                        Upload
                    </button>
                )}
            </div>
            <RequestView request={page}>
                {({ snapshots, next }) => (
                    <>
                        <Table
                            label="Snapshots"
                            rows={snapshots}
                            keyOf={(snapshot) => snapshot.snapshot_id}
                            empty="There is no snapshot. The page of a session makes one."
                            columns={[
                                {
                                    name: "Snapshot",
                                    render: (snapshot) => (
                                        <>
                                            {snapshot.name ?? "no name"}{" "}
                                            {snapshot.public && <span class="state">public</span>}
                                            <small class="mono">{snapshot.snapshot_id}</small>
                                            <small>{escapeName(formatValues(snapshot.metadata))}</small>
                                        </>
                                    ),
                                },
                                {
                                    name: "Environment",
                                    render: (snapshot) => (
                                        <>
                                            {snapshot.environment}
                                            <small>{snapshot.image}</small>
                                        </>
                                    ),
                                },
                                {
                                    name: "Size",
                                    right: true,
                                    render: ({ bytes, disk_mb }) => (
                                        <span title={`Of a disk of ${formatBytes(disk_mb * MIB)}`}>
                                            {formatBytes(bytes)}
                                        </span>
                                    ),
                                },
                                {
                                    name: "Session",
                                    render: ({ session_id, thread_id }) =>
                                        session_id ? (
                                            <a href={`/ui/sessions/${encodeURIComponent(session_id)}`}>
                                                {escapeName(thread_id ?? "")}
                                                <small class="mono">{session_id}</small>
                                            </a>
                                        ) : (
                                            "uploaded"
                                        ),
                                },
                                {
                                    name: "Parent",
                                    render: ({ parent }) =>
                                        parent && (names.get(parent) ?? <small class="mono">{parent}</small>),
                                },
                                ...(serverInfo.value?.cluster
                                    ? [{ name: "Worker", render: ({ worker }: SnapshotView) => worker ?? "" }]
                                    : []),
                                {
                                    name: "Made",
                                    render: (snapshot) => formatDateTime(snapshot.created_at),
                                },
                                {
                                    name: "Expires",
                                    render: ({ expires_at }) =>
                                        expires_at ? (
                                            <span class="nowrap" title={formatDateTime(expires_at)}>
                                                in {formatDuration(secondsUntil(expires_at))}
                                            </span>
                                        ) : (
                                            "never"
                                        ),
                                },
                                {
                                    name: "Actions",
                                    render: (snapshot) => (
                                        <Actions
                                            snapshot={snapshot}
                                            onOpen={(kind) => (dialog.value = { kind, snapshot })}
                                        />
                                    ),
                                },
                            ]}
                        />
                        <ShowMore next={next} limit={limit} />
                    </>
                )}
            </RequestView>
            {dialog.value?.kind === "upload" && <UploadDialog onDone={page.reload} onClose={close} />}
            {dialog.value?.kind === "start" && (
                <CreateSessionDialog
                    environments={environments.data.value?.environments ?? []}
                    snapshot={nameOf(dialog.value.snapshot)}
                    onClose={close}
                />
            )}
            {dialog.value?.kind === "delete" && (
                <DeleteDialog snapshot={dialog.value.snapshot} onDone={page.reload} onClose={close} />
            )}
        </section>
    );
}

const nameOf = ({ name, snapshot_id }: SnapshotView): string => name ?? snapshot_id;

function Actions({ snapshot, onOpen }: { snapshot: SnapshotView; onOpen: (kind: "start" | "delete") => void }) {
    const name = nameOf(snapshot);
    const content = apiPath`/api/snapshots/${snapshot.snapshot_id}/content`;
    return (
        <span class="actions">
            {hasScope("sessions") && (
                <button
                    type="button"
                    class="plain small"
                    aria-label={`Start a session from ${name}`}
                    onClick={() => onOpen("start")}
                >
                    Start a session
                </button>
            )}
            {hasScope("files") && (
                <button
                    type="button"
                    class="plain small"
                    aria-label={`Download ${name}`}
                    onClick={() => runAction(() => download(content, {}, `${name}.warren-snapshot`))}
                >
                    Download
                </button>
            )}
            {hasScope("sessions") && (
                <button
                    type="button"
                    class="danger small"
                    aria-label={`Delete ${name}`}
                    onClick={() => onOpen("delete")}
                >
                    Delete
                </button>
            )}
        </span>
    );
}

interface DialogProps {
    onDone: () => Promise<void>;
    onClose: () => void;
}

function DeleteDialog({ snapshot, onDone, onClose }: DialogProps & { snapshot: SnapshotView }) {
    return (
        <ConfirmDialog
            title="Delete the snapshot?"
            action="Delete it"
            onConfirm={() => remove(apiPath`/api/snapshots/${snapshot.snapshot_id}`).then(onDone)}
            onClose={onClose}
        >
            <p>
                <b>{nameOf(snapshot)}</b> is gone for good. Sessions that started from it have copies, and go on.
            </p>
        </ConfirmDialog>
    );
}

function UploadDialog({ onDone, onClose }: DialogProps) {
    const input = useRef<HTMLInputElement>(null);
    const name = useSignal("");
    const environment = useSignal("");
    const path = useSignal("");
    const sent = useSignal(0);
    const controller = useRef(new AbortController());
    useEffect(() => () => controller.current.abort(), []); // closing the dialog cancels the upload
    async function submit() {
        const file = input.current!.files![0]!;
        const query = { name: name.value.trim(), environment: environment.value.trim(), path: path.value.trim() };
        const report = (bytes: number) => (sent.value = percent(bytes, file.size));
        await upload("/api/snapshots", query, file, report, controller.current.signal);
        notify("The snapshot is there.");
        await onDone();
    }
    return (
        <FormDialog
            title="Upload a snapshot"
            submitLabel="Upload"
            busyLabel={sent.value < 100 ? `${Math.floor(sent.value)} % sent` : "Unpacking…"}
            onSubmit={submit}
            onClose={onClose}
        >
            <div class="field">
                <label>
                    File
                    <input ref={input} type="file" required aria-describedby="upload-hint" />
                </label>
                <small id="upload-hint">
                    A download of this installation, or a tar
                    {hasScope("sessions") ? "" : ", which your key may not upload"}.
                </small>
            </div>
            <TextField label="Name" value={name} maxLength={64} />
            {hasScope("sessions") && (
                <details>
                    <summary>If it is a tar</summary>
                    <TextField label="Environment that it is for" value={environment} placeholder="The default one" />
                    <TextField label="Unpacked at" value={path} placeholder="/workspace" />
                </details>
            )}
        </FormDialog>
    );
}
