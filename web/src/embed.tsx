// One terminal, for pages of other products: /embed/terminal?ticket=…
//
// The ticket works once. It is exchanged for a token that only this page's memory holds, so loading the page again needs
// another ticket: the embedding product makes one for each load.

import "@xterm/xterm/css/xterm.css";

import "./style/base.css";
import "./style/components.css";
import "./style/session.css";

import { useSignal } from "@preact/signals";
import { render } from "preact";
import { useEffect } from "preact/hooks";

import { post } from "./api/client";
import type { RedeemedView } from "./api/schemas";
import { memoryKey } from "./auth/account";
import { ErrorNote } from "./components/error_note";
import { errorMessage, Notifications } from "./components/notifications";
import type { TerminalTarget } from "./terminal/connection";
import { newTerminalId } from "./terminal/protocol";
import { TerminalView } from "./terminal/view";

function takeTicket(): string {
    const ticket = new URLSearchParams(location.search).get("ticket") ?? "";
    history.replaceState(null, "", location.pathname); // a used ticket is worthless, but need not stay visible
    return ticket;
}

async function redeem(ticket: string): Promise<TerminalTarget> {
    if (!ticket) throw new Error("This page needs a ticket. Load it with the address that was made for it.");
    const redeemed = await post<RedeemedView>("/api/ui/tickets/redeem", { ticket });
    memoryKey.value = redeemed.token; // for requests beside the socket
    const processId = redeemed.process_id || newTerminalId();
    return {
        sessionId: redeemed.session_id,
        processId,
        isNew: !redeemed.process_id,
        readOnly: redeemed.read_only,
        token: redeemed.token,
    };
}

function EmbeddedTerminal() {
    const target = useSignal<TerminalTarget | null>(null);
    const error = useSignal("");
    useEffect(() => {
        redeem(takeTicket()).then(
            (found) => (target.value = found),
            (failure) => (error.value = errorMessage(failure)),
        );
    }, []);
    return (
        <main>
            <ErrorNote text={error.value} />
            {!target.value && !error.value && (
                <p class="note" aria-busy="true">
                    Connecting…
                </p>
            )}
            {target.value && <TerminalView target={target.value} label="Terminal" isShown />}
            <Notifications />
        </main>
    );
}

render(<EmbeddedTerminal />, document.getElementById("app")!);
