// The volumes of the tenant.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

import { apiPath, get, patch, post, remove } from "../api/client";
import type { NewVolumeBody, VolumePage, VolumePatchBody, VolumeView } from "../api/schemas";
import { hasScope, serverInfo } from "../auth/account";
import { NumberField, TextField } from "../components/fields";
import { ConfirmDialog, FormDialog } from "../components/form_dialog";
import { Meter } from "../components/meter";
import { RequestView, useReloadOnEvents, useRequest } from "../components/request";
import { ShowMore } from "../components/show_more";
import { Table } from "../components/table";
import { useTitle } from "../components/use_title";
import { escapeName } from "../lib/escape";
import { formatBytes, formatDateTime, formatValues, MIB } from "../lib/format";

const PAGE_SIZE = 50;
const NONE: readonly VolumeView[] = [];
const RELEVANT = /^(volume\.|session\.(created|ended|expired|lost|hibernated|resumed)$)/;

type OpenDialog = { kind: "create" } | { kind: "grow" | "delete"; volume: VolumeView };

export function VolumesPage() {
    useTitle("Volumes");
    const limit = useSignal(PAGE_SIZE);
    const dialog = useSignal<OpenDialog | null>(null);
    const page = useRequest((signal) => get<VolumePage>("/api/volumes", { limit: limit.value }, signal), [limit.value]);
    const details = useDetails(page.data.value?.volumes ?? NONE);
    useReloadOnEvents(page.reload, (event) => RELEVANT.test(event.kind), [limit.value]);
    const close = () => (dialog.value = null);
    const canChange = hasScope("sessions");
    return (
        <section aria-labelledby="title">
            <div class="title">
                <h1 id="title">Volumes</h1>
                {canChange && (
                    <button type="button" onClick={() => (dialog.value = { kind: "create" })}>
                        New volume
                    </button>
                )}
            </div>
            <RequestView request={page}>
                {({ volumes, next }) => (
                    <>
                        <Table
                            label="Volumes"
                            rows={volumes}
                            keyOf={(volume) => volume.volume_id}
                            empty="There is no volume."
                            columns={[
                                {
                                    name: "Volume",
                                    render: (volume) => (
                                        <>
                                            {volume.name}
                                            <small class="mono">{volume.volume_id}</small>
                                            <small>{escapeName(formatValues(volume.metadata))}</small>
                                        </>
                                    ),
                                },
                                {
                                    name: "Used",
                                    right: true,
                                    render: (volume) => <UsedBytes volume={details[volume.volume_id]} />,
                                },
                                { name: "Size", right: true, render: (volume) => formatBytes(volume.size_mb * MIB) },
                                ...(serverInfo.value?.cluster
                                    ? [{ name: "Worker", render: (volume: VolumeView) => volume.worker ?? "" }]
                                    : []),
                                {
                                    name: "Used by",
                                    render: (volume) => <SessionLinks ids={details[volume.volume_id]?.sessions} />,
                                },
                                { name: "Made", render: (volume) => formatDateTime(volume.created_at) },
                                {
                                    name: "Actions",
                                    render: (volume) =>
                                        canChange && (
                                            <span class="actions">
                                                <button
                                                    type="button"
                                                    class="plain small"
                                                    aria-label={`Grow ${volume.name}`}
                                                    onClick={() => (dialog.value = { kind: "grow", volume })}
                                                >
                                                    Grow
                                                </button>
                                                <button
                                                    type="button"
                                                    class="danger small"
                                                    aria-label={`Delete ${volume.name}`}
                                                    onClick={() => (dialog.value = { kind: "delete", volume })}
                                                >
                                                    Delete
                                                </button>
                                            </span>
                                        ),
                                },
                            ]}
                        />
                        <ShowMore next={next} limit={limit} />
                    </>
                )}
            </RequestView>
            {dialog.value?.kind === "create" && <CreateDialog onDone={page.reload} onClose={close} />}
            {dialog.value?.kind === "grow" && (
                <GrowDialog volume={dialog.value.volume} onDone={page.reload} onClose={close} />
            )}
            {dialog.value?.kind === "delete" && (
                <DeleteDialog volume={dialog.value.volume} onDone={page.reload} onClose={close} />
            )}
        </section>
    );
}

/** Asks for what each volume holds and who has it, one after the other: lists do not say so. */
function useDetails(volumes: readonly VolumeView[]): Readonly<Record<string, VolumeView>> {
    const details = useSignal<Readonly<Record<string, VolumeView>>>({});
    useEffect(() => {
        const controller = new AbortController();
        async function load() {
            for (const { volume_id } of volumes) {
                const found = await get<VolumeView>(apiPath`/api/volumes/${volume_id}`, {}, controller.signal).catch(
                    () => null, // it was deleted, or its worker is away
                );
                if (controller.signal.aborted) return;
                if (found) details.value = { ...details.value, [volume_id]: found };
            }
        }
        load();
        return () => controller.abort();
    }, [volumes]);
    return details.value;
}

function UsedBytes({ volume }: { volume: VolumeView | undefined }) {
    if (typeof volume?.used_bytes !== "number") return <>–</>;
    return <Meter value={volume.used_bytes} max={volume.size_mb * MIB} format={formatBytes} />;
}

function SessionLinks({ ids }: { ids: readonly string[] | null | undefined }) {
    if (!ids) return <>–</>;
    if (ids.length === 0) return <>nobody</>;
    return (
        <>
            {ids.map((id) => (
                <small key={id}>
                    <a class="mono" href={`/ui/sessions/${encodeURIComponent(id)}`}>
                        {id}
                    </a>
                </small>
            ))}
        </>
    );
}

interface DialogProps {
    onDone: () => Promise<void>;
    onClose: () => void;
}

function CreateDialog({ onDone, onClose }: DialogProps) {
    const name = useSignal("");
    const sizeMb = useSignal("");
    async function submit() {
        const body: NewVolumeBody = {
            name: name.value.trim(),
            size_mb: sizeMb.value ? Number(sizeMb.value) : undefined,
        };
        await post<VolumeView>("/api/volumes", body);
        await onDone();
    }
    return (
        <FormDialog title="New volume" submitLabel="Make the volume" onSubmit={submit} onClose={onClose}>
            <TextField label="Name" value={name} required maxLength={128} />
            <NumberField
                label="Size (MiB)"
                value={sizeMb}
                step="1"
                min="1"
                placeholder="As the server says"
                hint="What it may hold. It takes room as it fills."
            />
        </FormDialog>
    );
}

function GrowDialog({ volume, onDone, onClose }: DialogProps & { volume: VolumeView }) {
    const sizeMb = useSignal(String(volume.size_mb));
    async function submit() {
        const body: VolumePatchBody = { size_mb: Number(sizeMb.value) };
        await patch<VolumeView>(apiPath`/api/volumes/${volume.volume_id}`, body);
        await onDone();
    }
    return (
        <FormDialog
            title={`Grow ${volume.name}`}
            submitLabel="Grow"
            busyLabel="Growing…"
            onSubmit={submit}
            onClose={onClose}
        >
            <NumberField
                label="Size (MiB)"
                value={sizeMb}
                step="1"
                min={String(volume.size_mb)}
                required
                hint="It grows while no session has it, and never becomes smaller."
            />
        </FormDialog>
    );
}

function DeleteDialog({ volume, onDone, onClose }: DialogProps & { volume: VolumeView }) {
    return (
        <ConfirmDialog
            title="Delete the volume?"
            action="Delete it"
            onConfirm={() => remove(apiPath`/api/volumes/${volume.volume_id}`).then(onDone)}
            onClose={onClose}
        >
            <p>
                <b>{volume.name}</b> and everything in it is gone for good.
            </p>
        </ConfirmDialog>
    );
}
