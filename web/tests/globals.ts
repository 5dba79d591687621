// What modules of the dashboard find in a browser and not in Node. test.mjs loads it before them.

class Page extends EventTarget {
    hidden = false;

    /** Hides the page or shows it, as changing the tab of a browser does. */
    setHidden(hidden: boolean): void {
        this.hidden = hidden;
        this.dispatchEvent(new Event("visibilitychange"));
    }
}

class Storage {
    private readonly items = new Map<string, string>();

    getItem(key: string): string | null {
        return this.items.get(key) ?? null;
    }

    setItem(key: string, value: string): void {
        this.items.set(key, value);
    }
}

export const page = new Page();
const { fetch: absoluteFetch } = globalThis;
export const intervals: (() => void)[] = [];
/** The address of the page. */
export const address = { origin: "http://127.0.0.1:9" }; // nothing listens there

Object.assign(globalThis, {
    document: page,
    sessionStorage: new Storage(),
    // A browser resolves the paths of requests against the address of the page.
    fetch: (path: string, init?: RequestInit) => absoluteFetch(new URL(path, address.origin), init),
    setInterval: (work: () => void) => intervals.push(work),
});
