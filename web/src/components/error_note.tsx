/** An error message in the page; nothing if the text is empty. */
export function ErrorNote({ text }: { text: string }) {
    if (!text) return null;
    return (
        <p class="note error" role="alert">
            {text}
        </p>
    );
}
