// One terminal, for pages of other products: /embed/terminal?ticket=…
//
// The ticket works once. It becomes a token that only this page's memory holds, so loading the page again needs another
// ticket: whoever embeds it makes one for each load.

import "@xterm/xterm/css/xterm.css";

import "./style/base.css";
import "./style/parts.css";
import "./style/session.css";

import { useSignal } from "@preact/signals";
import { render } from "preact";
import { useEffect } from "preact/hooks";

import { memoryKey } from "./account";
import { post } from "./api";
import { describe, Messages } from "./parts/messages";
import type { Place } from "./terminal/connection";
import { TerminalView } from "./terminal/view";

interface Redeemed {
    token: string;
    session_id: string;
    process_id: string;
    read_only: boolean;
    expires_at: string;
}

function takeTicket(): string {
    const ticket = new URLSearchParams(location.search).get("ticket") ?? "";
    history.replaceState(null, "", location.pathname); // a used ticket is worthless, but need not be seen either
    return ticket;
}

async function redeem(ticket: string): Promise<Place> {
    if (!ticket) throw new Error("This page needs a ticket. Load it with the address that was made for it.");
    const found = await post<Redeemed>("/api/ui/tickets/redeem", { ticket });
    memoryKey.value = found.token; // requests beside the socket carry it too
    const processId = found.process_id || `terminal-${crypto.getRandomValues(new Uint32Array(2)).join("")}`;
    return {
        sessionId: found.session_id,
        processId,
        isNew: !found.process_id,
        readOnly: found.read_only,
        token: found.token,
    };
}

function Embedded() {
    const place = useSignal<Place | null>(null);
    const error = useSignal("");
    useEffect(() => {
        redeem(takeTicket()).then(
            (found) => (place.value = found),
            (failure) => (error.value = describe(failure)),
        );
    }, []);
    return (
        <main>
            {error.value && (
                <p class="note error" role="alert">
                    {error.value}
                </p>
            )}
            {!place.value && !error.value && (
                <p class="note" aria-busy="true">
                    Connecting…
                </p>
            )}
            {place.value && <TerminalView place={place.value} label="Terminal" isShown />}
            <Messages />
        </main>
    );
}

render(<Embedded />, document.getElementById("app")!);
