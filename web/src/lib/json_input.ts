// JSON that users type into forms.

/** Parses a JSON object. Empty text is an empty object. Throws an Error whose message begins with `label`. */
export function parseJsonObject(text: string, label: string): Record<string, unknown> {
    if (!text.trim()) return {};
    let value: unknown;
    try {
        value = JSON.parse(text);
    } catch {
        throw new Error(`${label} is not JSON`);
    }
    if (typeof value !== "object" || value === null || Array.isArray(value))
        throw new Error(`${label} must be a JSON object, such as {"sessions": 5}`);
    return value as Record<string, unknown>;
}
