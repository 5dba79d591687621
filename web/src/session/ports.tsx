// Servers inside the sandbox, and links to previews of them.

import { useSignal } from "@preact/signals";

import { apiPath, get, post, put, remove } from "../api/client";
import type { PortList, PortView, PreviewLinkView } from "../api/schemas";
import { hasScope } from "../auth/account";
import { SelectField } from "../components/fields";
import { ConfirmDialog } from "../components/form_dialog";
import { notify, runAction } from "../components/notifications";
import { RequestView, useRequest } from "../components/request";
import { Table } from "../components/table";
import { formatDateTime } from "../lib/format";
import type { TabProps } from "../pages/session";

const INTERVAL_MS = 10_000;
const LINK_LIFETIMES = [
    ["3600", "1 hour"],
    ["86400", "1 day"],
    ["604800", "7 days"],
] as const;

export function PortsTab({ session }: TabProps) {
    const id = session.session_id;
    const loaded = useRequest(
        (signal) => get<PortList>(apiPath`/api/sessions/${id}/ports`, {}, signal),
        [id],
        INTERVAL_MS,
    );
    const lifetimeS = useSignal("3600");
    const link = useSignal<PreviewLinkView | null>(null);
    const isConfirming = useSignal(false);

    const open = (port: number) =>
        runAction(async () => {
            const created = await post<PreviewLinkView>(apiPath`/api/sessions/${id}/links`, {
                port,
                expires_s: Number(lifetimeS.value),
            });
            link.value = created;
            openPreview(created.url);
        });
    const togglePublic = (port: PortView) =>
        runAction(
            async () => {
                await put(apiPath`/api/sessions/${id}/ports/${port.port}`, { public: !port.public });
                await loaded.reload();
            },
            port.public ? `Port ${port.port} is private` : `Port ${port.port} is open to everybody`,
        );
    const revoke = async () => {
        await remove(apiPath`/api/sessions/${id}/links`);
        link.value = null;
    };

    return (
        <>
            <div class="row">
                <SelectField
                    label="A link opens for"
                    value={lifetimeS.value}
                    options={LINK_LIFETIMES}
                    onChange={(value) => (lifetimeS.value = value)}
                />
                <button type="button" class="plain" onClick={loaded.reload}>
                    Look again
                </button>
                {hasScope("exec") && (
                    <button type="button" class="danger" onClick={() => (isConfirming.value = true)}>
                        Revoke all links
                    </button>
                )}
            </div>
            {isConfirming.value && (
                <ConfirmDialog
                    title="Revoke all links"
                    action="Revoke"
                    onConfirm={revoke}
                    onClose={() => (isConfirming.value = false)}
                >
                    <p>Nobody can open a preview of this session by a link that was made until now.</p>
                </ConfirmDialog>
            )}
            {link.value && <LinkCard link={link.value} />}
            <RequestView request={loaded}>
                {({ ports }) => (
                    <Table
                        label="Ports"
                        rows={ports}
                        keyOf={(port) => `${port.address} ${port.port}`}
                        empty="Nothing listens inside the sandbox."
                        columns={[
                            { name: "Port", render: (port) => port.port, right: true },
                            { name: "Listens on", render: (port) => port.address },
                            {
                                name: "Who may open it",
                                render: (port) =>
                                    port.public ? (
                                        <span class="state warn">everybody</span>
                                    ) : (
                                        <span class="state">who has a link</span>
                                    ),
                            },
                            {
                                name: "Preview",
                                render: (port) => (
                                    <span class="actions">
                                        {hasScope("exec") && (
                                            <button
                                                type="button"
                                                class="small"
                                                onClick={() => open(port.port)}
                                                aria-label={`Open port ${port.port} in a new tab`}
                                            >
                                                Open
                                            </button>
                                        )}
                                        {hasScope("sessions") && (
                                            <button
                                                type="button"
                                                class="plain small"
                                                onClick={() => togglePublic(port)}
                                                aria-label={`Make port ${port.port} ${port.public ? "private" : "public"}`}
                                            >
                                                {port.public ? "Make private" : "Make public"}
                                            </button>
                                        )}
                                    </span>
                                ),
                            },
                        ]}
                    />
                )}
            </RequestView>
        </>
    );
}

function LinkCard({ link }: { link: PreviewLinkView }) {
    const copy = () => runAction(() => navigator.clipboard.writeText(link.url), "Copied");
    return (
        <div class="row card">
            <label class="grow">
                Link to port {link.port}, until {formatDateTime(link.expires_at)}. Whoever has it can open the page.
                <input readonly value={link.url} onFocus={(event) => event.currentTarget.select()} />
            </label>
            <button type="button" class="plain" onClick={copy}>
                Copy
            </button>
        </div>
    );
}

/** The page belongs to the sandbox: it gets neither a handle on this page nor its address. */
function openPreview(url: string): void {
    if (!/^https?:\/\//.test(url)) notify("The link is not one of a page", "error");
    else window.open(url, "_blank", "noopener,noreferrer");
}
