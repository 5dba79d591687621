// One terminal on the page: its screen, its connection, and what belongs around them.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

import { Dialog } from "../parts/dialog";
import { attempt, tell } from "../parts/messages";
import { visible } from "../parts/visible";
import { Connection, type Place } from "./connection";
import { newScreen, type Screen, withoutControls } from "./screen";

interface Props {
    place: Place;
    label: string;
    isShown: boolean;
    /** Called when it has ended or cannot be had; the text says why. */
    onEnd?: (note: string) => void;
}

interface Parts {
    screen: Screen;
    connection: Connection;
}

const READER = "warren.screen-reader";

export function TerminalView({ place, label, isShown, onEnd }: Props) {
    const holder = useRef<HTMLDivElement>(null);
    const parts = useSignal<Parts | null>(null);
    const link = useSignal("");
    const screenReader = useSignal(localStorage.getItem(READER) === "on");
    useEffect(() => {
        const screen = newScreen(holder.current!, {
            readOnly: !!place.readOnly,
            screenReader: screenReader.value,
            onLink: (address) => (link.value = address),
        });
        screen.fit.fit();
        screen.terminal.textarea!.setAttribute("aria-label", `${label}, input`);
        screen.terminal.attachCustomKeyEventHandler((event) => handleKey(event, screen));
        const connection = new Connection(place, screen);
        parts.value = { screen, connection };
        const unsubscribe = connection.state.subscribe((state) => {
            if (state === "ended" || state === "failed") onEnd?.(connection.note.value);
        });
        let timer = 0;
        const observer = new ResizeObserver(() => {
            clearTimeout(timer);
            timer = setTimeout(() => connection.fit(), 120);
        });
        observer.observe(holder.current!);
        return () => {
            clearTimeout(timer);
            observer.disconnect();
            unsubscribe();
            connection.close();
            screen.dispose();
        };
    }, []);
    useEffect(() => {
        if (isShown && !place.readOnly) parts.value?.screen.terminal.focus();
    }, [isShown, parts.value]);

    function setReader(on: boolean) {
        screenReader.value = on;
        localStorage.setItem(READER, on ? "on" : "off");
        parts.value!.screen.terminal.options.screenReaderMode = on;
    }
    const made = parts.value;
    return (
        <section class="terminal" hidden={!isShown} aria-label={label}>
            <div class="terminal-bar">
                <Status connection={made?.connection ?? null} readOnly={!!place.readOnly} />
                <span class="grow" />
                <button type="button" class="plain small" onClick={() => copy(made!.screen)}>
                    Copy
                </button>
                {!place.readOnly && (
                    <button type="button" class="plain small" onClick={() => paste(made!.screen)}>
                        Paste
                    </button>
                )}
                <label class="inline">
                    <input
                        type="checkbox"
                        checked={screenReader.value}
                        onChange={(event) => setReader(event.currentTarget.checked)}
                    />
                    Screen reader
                </label>
            </div>
            <div ref={holder} class="terminal-screen" />
            {!place.readOnly && (
                <p class="note small">Control, Shift and the arrow up leave the terminal by keyboard.</p>
            )}
            {link.value && <LinkDialog address={link.value} onClose={() => (link.value = "")} />}
        </section>
    );
}

function Status({ connection, readOnly }: { connection: Connection | null; readOnly: boolean }) {
    const state = connection?.state.value ?? "connecting";
    const note = connection?.note.value ?? "";
    const texts = {
        connecting: "Connecting…",
        open: readOnly ? "Connected, read only" : "Connected",
        away: "The connection was lost. It comes back by itself.",
        ended: note,
        failed: note,
    };
    const classes = { connecting: "pending", open: "running", away: "error", ended: "", failed: "error" };
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
                <button type="button" class="plain small" onClick={() => connection!.again()}>
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

/** Links come from the sandbox: the whole address is shown before it is opened, and the new page learns nothing of this one. */
function LinkDialog({ address, onClose }: { address: string; onClose: () => void }) {
    const isWeb = /^https?:\/\//i.test(address);
    return (
        <Dialog title="Open this address?" onClose={onClose}>
            <p>It comes from the sandbox, and may not lead where it seems to.</p>
            <pre class="address">{visible(address)}</pre>
            {!isWeb && <p class="note error">Only addresses of the web are opened.</p>}
            <div class="row">
                {isWeb && (
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
        if (event.type === "keydown") copy(screen);
        return false;
    }
    return true;
}

const NO_CLIPBOARD =
    "Over plain HTTP the browser gives this page no clipboard: use the keyboard or the menu of the mouse.";

async function copy(screen: Screen): Promise<void> {
    const text = screen.terminal.getSelection();
    if (!text) return tell("Nothing is selected.");
    if (!navigator.clipboard) return tell(NO_CLIPBOARD, "error");
    await attempt(() => navigator.clipboard.writeText(text), "Copied.");
}

async function paste(screen: Screen): Promise<void> {
    if (!navigator.clipboard) return tell(NO_CLIPBOARD, "error");
    await attempt(async () => screen.terminal.paste(withoutControls(await navigator.clipboard.readText())));
    screen.terminal.focus();
}
