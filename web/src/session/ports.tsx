// Servers inside the sandbox, and links to their pages.

import { useSignal } from "@preact/signals";

import { may } from "../account";
import { get, path, post, put, remove } from "../api";
import type { TabProps } from "../pages/session";
import { Confirm } from "../parts/confirm";
import { Shown, useLoaded } from "../parts/load";
import { attempt, tell } from "../parts/messages";
import { Table } from "../parts/table";
import { fullTime } from "../parts/units";

interface Port {
    port: number;
    address: string;
    public: boolean;
}

interface Link {
    url: string;
    port: number;
    expires_at: string;
}

const EVERY_MS = 10_000;
const LASTS: [string, number][] = [
    ["1 hour", 3600],
    ["1 day", 86400],
    ["7 days", 604800],
];

export function Ports({ session }: TabProps) {
    const id = session.session_id;
    const loaded = useLoaded(
        (signal) => get<{ ports: Port[] }>(path`/api/sessions/${id}/ports`, {}, signal),
        [id],
        EVERY_MS,
    );
    const lastsS = useSignal(3600);
    const link = useSignal<Link | null>(null);
    const revokes = useSignal(false);

    const open = (port: number) =>
        attempt(async () => {
            const made = await post<Link>(path`/api/sessions/${id}/links`, { port, expires_s: lastsS.value });
            link.value = made;
            openPage(made.url);
        });
    const publish = (port: Port) =>
        attempt(
            async () => {
                await put(path`/api/sessions/${id}/ports/${port.port}`, { public: !port.public });
                await loaded.again();
            },
            port.public ? `Port ${port.port} is private` : `Port ${port.port} is open to everybody`,
        );
    const revoke = async () => {
        await remove(path`/api/sessions/${id}/links`);
        link.value = null;
    };

    return (
        <>
            <div class="row">
                <label>
                    A link opens for
                    <select
                        value={lastsS.value}
                        onChange={(event) => (lastsS.value = Number(event.currentTarget.value))}
                    >
                        {LASTS.map(([name, seconds]) => (
                            <option key={seconds} value={seconds}>
                                {name}
                            </option>
                        ))}
                    </select>
                </label>
                <button type="button" class="plain" onClick={loaded.again}>
                    Look again
                </button>
                {may("exec") && (
                    <button type="button" class="danger" onClick={() => (revokes.value = true)}>
                        Revoke all links
                    </button>
                )}
            </div>
            {revokes.value && (
                <Confirm
                    title="Revoke all links"
                    action="Revoke"
                    onConfirm={revoke}
                    onClose={() => (revokes.value = false)}
                >
                    <p>Nobody can open a preview of this session by a link that was made until now.</p>
                </Confirm>
            )}
            {link.value && <Made link={link.value} />}
            <Shown of={loaded}>
                {({ ports }) => (
                    <Table
                        label="Ports"
                        rows={ports}
                        keyOf={(one) => `${one.address} ${one.port}`}
                        empty="Nothing listens inside the sandbox."
                        columns={[
                            { name: "Port", show: (one) => one.port, right: true },
                            { name: "Listens on", show: (one) => one.address },
                            {
                                name: "Who may open it",
                                show: (one) =>
                                    one.public ? (
                                        <span class="state warn">everybody</span>
                                    ) : (
                                        <span class="state">who has a link</span>
                                    ),
                            },
                            {
                                name: "Preview",
                                show: (one) => (
                                    <span class="actions">
                                        {may("exec") && (
                                            <button
                                                type="button"
                                                class="small"
                                                onClick={() => open(one.port)}
                                                aria-label={`Open port ${one.port} in a new tab`}
                                            >
                                                Open
                                            </button>
                                        )}
                                        {may("sessions") && (
                                            <button
                                                type="button"
                                                class="plain small"
                                                onClick={() => publish(one)}
                                                aria-label={`Make port ${one.port} ${one.public ? "private" : "public"}`}
                                            >
                                                {one.public ? "Make private" : "Make public"}
                                            </button>
                                        )}
                                    </span>
                                ),
                            },
                        ]}
                    />
                )}
            </Shown>
        </>
    );
}

function Made({ link }: { link: Link }) {
    const copy = () => attempt(() => navigator.clipboard.writeText(link.url), "Copied");
    return (
        <div class="row card">
            <label class="grow">
                Link to port {link.port}, until {fullTime(link.expires_at)}. Whoever has it can open the page.
                <input readonly value={link.url} onFocus={(event) => event.currentTarget.select()} />
            </label>
            <button type="button" class="plain" onClick={copy}>
                Copy
            </button>
        </div>
    );
}

/** The page is a stranger's: it gets neither a handle on this one nor its address. */
function openPage(url: string): void {
    if (!/^https?:\/\//.test(url)) tell("The link is not one of a page", "error");
    else window.open(url, "_blank", "noopener,noreferrer");
}
