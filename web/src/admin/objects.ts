// JSON that people type.

/** An object; empty text is an empty one. `what` begins the sentence that says what is wrong. */
export function readObject(text: string, what: string): Record<string, unknown> {
    if (!text.trim()) return {};
    let value: unknown;
    try {
        value = JSON.parse(text);
    } catch {
        throw new Error(`${what} is not JSON`);
    }
    if (typeof value !== "object" || value === null || Array.isArray(value))
        throw new Error(`${what} must be a JSON object, such as {"sessions": 5}`);
    return value as Record<string, unknown>;
}
