// An xterm terminal that output of a sandbox cannot use against the person who looks at it.
//
// Sequences for the clipboard, the window's title, notifications and the like are ignored. Links open only through
// `onLink`, which asks first. Pasted text cannot end a bracketed paste. Style elements get the page's nonce, and style
// attributes are set through the style object, because the content security policy allows nothing else.

import { FitAddon } from "@xterm/addon-fit";
import { WebLinksAddon } from "@xterm/addon-web-links";
import { type ITheme, Terminal } from "@xterm/xterm";

import { stripControlCharacters } from "../lib/escape";

export interface Screen {
    terminal: Terminal;
    fit: FitAddon;
    dispose: () => void;
}

interface ScreenOptions {
    readOnly: boolean;
    screenReader: boolean;
    onLink: (address: string) => void;
}

/** Written where a part of the output is missing. The first byte cancels a sequence that the gap may have cut. */
export const GAP_NOTICE = "\x18\r\n\x1b[0;2m[a part of the output was not kept]\x1b[0m\r\n";

const SCROLLBACK = 5_000;
// Titles (0, 1, 2), current directory (7), notifications (9, 99, 777), pointer shapes (22), fonts (50), clipboard (52),
// marks and files of other emulators (133, 633, 1337). Colours and links (4, 8, 10 to 12 and their resets) remain.
const IGNORED_OSC = [0, 1, 2, 3, 7, 9, 22, 30, 50, 51, 52, 99, 133, 176, 440, 633, 777, 1337, 5522];

const DARK: ITheme = {
    background: "#121417",
    foreground: "#e6e7ea",
    cursor: "#e6e7ea",
    cursorAccent: "#121417",
    selectionBackground: "#3d5a80",
    black: "#2b2f36",
    red: "#f0857d",
    green: "#6ccb86",
    yellow: "#e2b25b",
    blue: "#7fb2f0",
    magenta: "#d39ae0",
    cyan: "#6cc7c7",
    white: "#d5d7db",
    brightBlack: "#7b828e",
    brightRed: "#ffa59e",
    brightGreen: "#92e3a8",
    brightYellow: "#f4cc82",
    brightBlue: "#a5cbff",
    brightMagenta: "#e6b9f0",
    brightCyan: "#93e0e0",
    brightWhite: "#ffffff",
};
const LIGHT: ITheme = {
    background: "#ffffff",
    foreground: "#1d2025",
    cursor: "#1d2025",
    cursorAccent: "#ffffff",
    selectionBackground: "#b9d3f0",
    black: "#1d2025",
    red: "#b3261e",
    green: "#26733b",
    yellow: "#8a5a00",
    blue: "#1a5fb4",
    magenta: "#813d9c",
    cyan: "#11656b",
    white: "#6a6f78",
    brightBlack: "#5b616b",
    brightRed: "#c8372e",
    brightGreen: "#2f8046",
    brightYellow: "#976400",
    brightBlue: "#2a6fc4",
    brightMagenta: "#914dac",
    brightCyan: "#1d757b",
    brightWhite: "#3a3e46",
};

export function createScreen(container: HTMLElement, { readOnly, screenReader, onLink }: ScreenOptions): Screen {
    patchStyles();
    const darkMode = matchMedia("(prefers-color-scheme: dark)");
    const terminal = new Terminal({
        scrollback: SCROLLBACK,
        disableStdin: readOnly,
        cursorBlink: false,
        cursorInactiveStyle: readOnly ? "none" : "outline",
        fontFamily: getComputedStyle(document.documentElement).getPropertyValue("--mono").trim() || "monospace",
        fontSize: 13,
        screenReaderMode: screenReader,
        minimumContrastRatio: 4.5,
        theme: darkMode.matches ? DARK : LIGHT,
        linkHandler: { activate: (_, address) => onLink(address), allowNonHttpProtocols: false },
    });
    const fit = new FitAddon();
    terminal.loadAddon(fit);
    terminal.loadAddon(new WebLinksAddon((_, address) => onLink(address)));
    for (const code of IGNORED_OSC) terminal.parser.registerOscHandler(code, () => true);
    terminal.parser.registerCsiHandler({ final: "t" }, () => true); // moves, resizes and reports of the window
    // Queries of settings. If the program has ended, the shell would take the answer for typed keys.
    terminal.parser.registerDcsHandler({ intermediates: "$", final: "q" }, () => true);
    const updateTheme = () => (terminal.options.theme = darkMode.matches ? DARK : LIGHT);
    darkMode.addEventListener("change", updateTheme);
    terminal.open(container);
    const paste = (event: ClipboardEvent) => {
        event.preventDefault();
        event.stopPropagation();
        if (!readOnly) terminal.paste(stripControlCharacters(event.clipboardData?.getData("text/plain") ?? ""));
    };
    container.addEventListener("paste", paste, true);
    return {
        terminal,
        fit,
        dispose: () => {
            darkMode.removeEventListener("change", updateTheme);
            container.removeEventListener("paste", paste, true);
            terminal.dispose();
        },
    };
}

let isStylePatched = false;

function patchStyles(): void {
    if (isStylePatched) return;
    isStylePatched = true;
    const nonce = document.querySelector<HTMLMetaElement>('meta[name="csp-nonce"]')?.nonce ?? "";
    const create = document.createElement.bind(document) as (
        name: string,
        options?: ElementCreationOptions,
    ) => HTMLElement;
    document.createElement = ((name: string, options?: ElementCreationOptions) => {
        const element = create(name, options);
        if (name === "style") element.setAttribute("nonce", nonce);
        else if (name === "span") element.setAttribute = setAttributeThroughStyle; // xterm sets the colours of its cells by style attributes
        return element;
    }) as typeof document.createElement;
}

function setAttributeThroughStyle(this: HTMLElement, name: string, value: string): void {
    if (name === "style") this.style.cssText = value;
    else Element.prototype.setAttribute.call(this, name, value);
}
