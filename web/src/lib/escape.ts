// Text from a sandbox, made safe to look at.
//
// A name can contain characters that hide or reorder others, so that it looks like another name, and output contains
// sequences that a terminal would execute. Here the first become visible escapes, and the second are removed.

// Controls, soft hyphen, Arabic letter mark, Hangul fillers, zero-width and bidirectional marks, line and paragraph
// separators, blanks other than the ordinary one, variation selectors, tags, lone surrogates.
const HIDDEN =
    // biome-ignore lint/suspicious/noMisleadingCharacterClass: each of these characters is meant by itself
    /[\u0000-\u001f\u007f-\u00a0\u00ad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\u{e0000}-\u{e0fff}]|\p{Surrogate}/gu;

// Of these, the characters that change how a longer text is read.
const MISLEADING =
    /[\u00ad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\u3164\uffa0]|[\u{e0000}-\u{e0fff}]/u;

// CSI, OSC, the strings DCS, SOS, PM and APC, and the two-character sequences.
const ESCAPE_SEQUENCE =
    /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])/g;

const CONTROL = /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f]/g;

/** Escapes hidden characters of a name, and the backslash: a newline is \n, a right-to-left override \u202e. */
export function escapeName(text: string): string {
    return escapeText(text.replace(/\\/g, "\\\\"));
}

/** Escapes hidden characters of a command or a sentence. A backslash stays as it is. */
export function escapeText(text: string): string {
    return text.replace(HIDDEN, escapeCharacter);
}

/** Escapes hidden characters in each line of a text. */
export const escapeLines = (text: string): string => text.split("\n").map(escapeText).join("\n");

function escapeCharacter(character: string): string {
    const short = { "\n": "\\n", "\r": "\\r", "\t": "\\t" }[character];
    const code = character.codePointAt(0)!;
    return short ?? (code > 0xffff ? `\\u{${code.toString(16)}}` : `\\u${code.toString(16).padStart(4, "0")}`);
}

/** Whether a text has characters that make it look like another one. */
export const hasMisleadingCharacters = (text: string): boolean => MISLEADING.test(text);

/** Removes the sequences that colour text or move a terminal's cursor. Of a line that was overwritten, the last version
 *  stays. */
export function stripEscapeSequences(text: string): string {
    const plain = text.replace(ESCAPE_SEQUENCE, "").replaceAll("\r\n", "\n");
    if (!plain.includes("\r")) return plain;
    return plain
        .split("\n")
        .map((line) => line.slice(line.lastIndexOf("\r", line.length - 2) + 1))
        .join("\n")
        .replaceAll("\r", "");
}

/** Removes control characters from text to paste: an escape in it could end the bracketed paste and press keys. */
export function stripControlCharacters(text: string): string {
    return text.replace(CONTROL, "");
}
