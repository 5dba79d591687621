import type { Signal } from "@preact/signals";

const MAX_ROWS = 1000; // the most that a request may ask for

/** Below a list whose request has `limit`: shows more of it, if the answer says that there is more. */
export function ShowMore({ next, limit }: { next: string | null; limit: Signal<number> }) {
    if (!next) return null;
    if (limit.value >= MAX_ROWS)
        return <p class="note">There are more, which only the API and the command line list.</p>;
    return (
        <button type="button" class="plain" onClick={() => (limit.value = Math.min(2 * limit.value, MAX_ROWS))}>
            Show more
        </button>
    );
}
