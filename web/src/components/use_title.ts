import { useEffect } from "preact/hooks";

/** Sets the title of the browser's tab. */
export function useTitle(title: string): void {
    useEffect(() => {
        document.title = title ? `${title} · Warren` : "Warren";
    }, [title]);
}
