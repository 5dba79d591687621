// Decodes the content of a file as text, and decides whether it can be edited.

import { hasMisleadingCharacters } from "../lib/escape";
import { formatBytes } from "../lib/format";

export interface DecodedText {
    text: string;
    /** Why it cannot be edited; empty if it can. */
    readOnlyReason: string;
    notices: string[];
    newline: "\n" | "\r\n";
}

/** Decodes the first bytes of a file of `size` bytes. A text can be edited only if saving it leaves all other bytes of
 *  the file as they are. */
export function decodeText(content: Uint8Array<ArrayBuffer>, size: number): DecodedText {
    if (content.includes(0)) return unreadable("It is not text. Download it to look at it.");
    const isTruncated = content.length < size;
    const { text, isUtf8 } = decodeBytes(content, isTruncated);
    const newline = text.includes("\r\n") ? "\r\n" : "\n";
    let readOnlyReason = "";
    if (isTruncated)
        readOnlyReason = `Only the first ${formatBytes(content.length)} of ${formatBytes(size)} are shown.`;
    else if (!isUtf8) readOnlyReason = "It is not UTF-8. It is shown as Latin-1 and cannot be edited here.";
    else if (hasMixedNewlines(text, newline)) {
        readOnlyReason = "Its lines end in different ways. It cannot be edited here.";
    }
    const notices: string[] = [];
    if (newline === "\r\n") notices.push("Its lines end with CR and LF; that stays.");
    if (text.startsWith("\ufeff")) notices.push("It begins with a byte order mark; that stays.");
    if (hasMisleadingCharacters(text)) {
        notices.push("It has characters that hide or reorder others: it may not be what it seems.");
    }
    return { text, readOnlyReason, notices, newline };
}

export function unreadable(reason: string): DecodedText {
    return { text: "", readOnlyReason: reason, notices: [], newline: "\n" };
}

function decodeBytes(content: Uint8Array<ArrayBuffer>, isTruncated: boolean): { text: string; isUtf8: boolean } {
    try {
        const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
        return { text: decoder.decode(content, { stream: isTruncated }), isUtf8: true };
    } catch {
        return { text: new TextDecoder("latin1").decode(content), isUtf8: false };
    }
}

function hasMixedNewlines(text: string, newline: DecodedText["newline"]): boolean {
    return newline === "\r\n" ? /[^\r]\n|^\n|\r(?!\n)/.test(text) : text.includes("\r");
}
