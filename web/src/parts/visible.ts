// Names from a sandbox as they are: characters that hide or reorder others are shown by their codes.

// Controls, soft hyphen, Arabic letter mark, Hangul fillers, zero-width and bidirectional marks, line and paragraph
// separators, blanks that are not the ordinary one, variation selectors, tags, lone surrogates.
const HIDDEN =
    /[\u0000-\u001f\u007f-\u00a0\u00ad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\u{e0000}-\u{e0fff}]|\p{Surrogate}/gu;

/** The same name with hidden characters as escapes: a newline is \n, a right-to-left override \u202e, and \ itself \\. */
export function visible(text: string): string {
    return legible(text.replace(/\\/g, "\\\\"));
}

/** A command or a sentence with hidden characters as escapes; a backslash of its own stays as it is. */
export function legible(text: string): string {
    return text.replace(HIDDEN, escape);
}

function escape(character: string): string {
    const short = { "\n": "\\n", "\r": "\\r", "\t": "\\t" }[character];
    const code = character.codePointAt(0)!;
    return short ?? (code > 0xffff ? `\\u{${code.toString(16)}}` : `\\u${code.toString(16).padStart(4, "0")}`);
}

// Of these only those that change how a text is read: bidirectional marks, zero-width and invisible characters, tags.
const MISLEADING =
    /[\u00ad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\u3164\uffa0]|[\u{e0000}-\u{e0fff}]/u;

/** Whether a longer text has characters that make it look like another one. */
export const hasHidden = (text: string): boolean => MISLEADING.test(text);
