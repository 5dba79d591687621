// One terminal on the page: its screen, its connection, and the bar above them.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

import { Dialog } from "../components/dialog";
import { notify, runAction } from "../components/notifications";
import { escapeName, stripControlCharacters } from "../lib/escape";
import { Connection, type ConnectionState, type TerminalTarget } from "./connection";
import { createScreen, type Screen } from "./screen";

interface Props {
    target: TerminalTarget;
    label: string;
    isShown: boolean;
    /** Called when the terminal has ended, or cannot be reached. */
    onEnd?: () => void;
}

interface TerminalParts {
    screen: Screen;
    connection: Connection;
}

const READER_KEY = "warren.screen-reader";

export function TerminalView({ target, label, isShown, onEnd }: Props) {
    const container = useRef<HTMLDivElement>(null);
    const parts = useSignal<TerminalParts | null>(null);
    const openLink = useSignal("");
    const screenReader = useSignal(localStorage.getItem(READER_KEY) === "on");
    useEffect(() => {
        const screen = createScreen(container.current!, {
            readOnly: !!target.readOnly,
            screenReader: screenReader.value,
            onLink: (address) => (openLink.value = address),
        });
        screen.fit.fit();
        screen.terminal.textarea!.setAttribute("aria-label", `${label}, input`);
        screen.terminal.attachCustomKeyEventHandler((event) => handleKey(event, screen));
        const connection = new Connection(target, screen);
        parts.value = { screen, connection };
        const unsubscribe = connection.state.subscribe((state) => {
            if (state === "ended" || state === "failed") onEnd?.();
        });
        let timer: ReturnType<typeof setTimeout> | undefined;
        const observer = new ResizeObserver(() => {
            clearTimeout(timer);
            timer = setTimeout(() => connection.fit(), 120);
        });
        observer.observe(container.current!);
        return () => {
            clearTimeout(timer);
            observer.disconnect();
            unsubscribe();
            connection.close();
            screen.dispose();
        };
    }, []);
    useEffect(() => {
        if (isShown && !target.readOnly) parts.value?.screen.terminal.focus();
    }, [isShown, parts.value]);

    function setScreenReader(on: boolean) {
        screenReader.value = on;
        localStorage.setItem(READER_KEY, on ? "on" : "off");
        parts.value!.screen.terminal.options.screenReaderMode = on;
    }
    const current = parts.value;
    return (
        <section class="terminal" hidden={!isShown} aria-label={label}>
            <div class="terminal-bar">
                <ConnectionStatus connection={current?.connection ?? null} readOnly={!!target.readOnly} />
                <span class="grow" />
                <button type="button" class="plain small" onClick={() => copySelection(current!.screen)}>
                    Copy
                </button>
                {!target.readOnly && (
                    <button type="button" class="plain small" onClick={() => pasteClipboard(current!.screen)}>
                        Paste
                    </button>
                )}
                <label class="inline">
                    <input
                        type="checkbox"
                        checked={screenReader.value}
                        onChange={(event) => setScreenReader(event.currentTarget.checked)}
                    />
                    Screen reader
                </label>
            </div>
            <div ref={container} class="terminal-screen" />
            {!target.readOnly && (
                <p class="note small">Control, Shift and the arrow up leave the terminal by keyboard.</p>
            )}
            {openLink.value && <LinkDialog address={openLink.value} onClose={() => (openLink.value = "")} />}
        </section>
    );
}

function ConnectionStatus({ connection, readOnly }: { connection: Connection | null; readOnly: boolean }) {
    const state = connection?.state.value ?? "connecting";
    const note = connection?.note.value ?? "";
    const texts: Record<ConnectionState, string> = {
        connecting: "Connecting…",
        open: readOnly ? "Connected, read only" : "Connected",
        disconnected: "The connection was lost. It comes back by itself.",
        ended: note,
        failed: note,
    };
    const classes = { connecting: "pending", open: "running", disconnected: "error", ended: "", failed: "error" };
    return (
        <span role="status" aria-live="polite">
            <span
                class={
                    state === "open" || state === "connecting" ? `state ${classes[state]}` : `note ${classes[state]}`
                }
            >
                {texts[state]}
            </span>{" "}
            {state === "failed" && (
                <button type="button" class="plain small" onClick={() => connection!.reconnect()}>
                    Try again
                </button>
            )}
            {connection?.foreignSize.value && (
                <span class="note small">
                    {` Another page has set the size, ${connection.foreignSize.value}. `}
                    {!readOnly && (
                        <button type="button" class="plain small" onClick={() => connection.takeSize()}>
                            Use the size of this page
                        </button>
                    )}
                </span>
            )}
        </span>
    );
}

/** Shows the whole address of a link before it is opened: it comes from the sandbox. The new page learns nothing of this
 *  one. */
function LinkDialog({ address, onClose }: { address: string; onClose: () => void }) {
    const isHttp = /^https?:\/\//i.test(address);
    return (
        <Dialog title="Open this address?" onClose={onClose}>
            <p>It comes from the sandbox, and may not lead where it seems to.</p>
            <pre class="address">{escapeName(address)}</pre>
            {!isHttp && <p class="note error">Only addresses of the web are opened.</p>}
            <div class="row">
                {isHttp && (
                    <a class="button" href={address} target="_blank" rel="noopener noreferrer" onClick={onClose}>
                        Open in a new tab
                    </a>
                )}
                <button type="button" class="plain" onClick={onClose}>
                    Cancel
                </button>
            </div>
        </Dialog>
    );
}

function handleKey(event: KeyboardEvent, screen: Screen): boolean {
    if (!event.ctrlKey || !event.shiftKey) return true;
    if (event.key === "ArrowUp") {
        if (event.type === "keydown") {
            screen.terminal.blur();
            document.querySelector<HTMLElement>('.terminals [role="tab"][aria-selected="true"]')?.focus();
        }
        return false;
    }
    if (event.code === "KeyC" && screen.terminal.hasSelection()) {
        event.preventDefault();
        if (event.type === "keydown") copySelection(screen);
        return false;
    }
    return true;
}

const NO_CLIPBOARD =
    "Over plain HTTP the browser gives this page no clipboard: use the keyboard or the menu of the mouse.";

async function copySelection(screen: Screen): Promise<void> {
    const text = screen.terminal.getSelection();
    if (!text) return notify("Nothing is selected.");
    if (!navigator.clipboard) return notify(NO_CLIPBOARD, "error");
    await runAction(() => navigator.clipboard.writeText(text), "Copied.");
}

async function pasteClipboard(screen: Screen): Promise<void> {
    if (!navigator.clipboard) return notify(NO_CLIPBOARD, "error");
    await runAction(async () => screen.terminal.paste(stripControlCharacters(await navigator.clipboard.readText())));
    screen.terminal.focus();
}
