// What is around every page: navigation, messages, and whether the server answers.

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { useLocation } from "preact-iso/router";

import { account, facts, may } from "./account";
import { connected, listen } from "./live";
import { allowed, home } from "./pages";
import { Messages } from "./parts/messages";
import { loadFacts } from "./signing";

export function Shell({ children }: { children: ComponentChildren }) {
    const { path } = useLocation();
    const main = useRef<HTMLElement>(null);
    const wasAt = useRef(path);
    useEffect(() => {
        // Somebody who reads by ear begins at the top of the new page.
        if (wasAt.current !== path) main.current!.focus({ preventScroll: true });
        wasAt.current = path;
    }, [path]);
    return (
        <>
            <a
                class="skip"
                href="#main"
                onClick={(event) => {
                    event.preventDefault();
                    main.current!.focus();
                }}
            >
                Skip to the page
            </a>
            <header class="top">
                <a class="brand" href="/">
                    <svg viewBox="7 6 18 20" aria-hidden="true">
                        <path d="M7 26V15a9 9 0 0 1 18 0v11h-5V15a4 4 0 0 0-8 0v11z" fill="currentColor" />
                    </svg>
                    Warren
                </a>
                {account.value && (
                    <nav aria-label="Pages">
                        {allowed().map(
                            (place) =>
                                place.label && (
                                    <a
                                        key={place.path}
                                        href={place.path}
                                        aria-current={
                                            path === place.path ||
                                            path.startsWith(`${place.path}/`) ||
                                            (path === "/" && place.path === home())
                                                ? "page"
                                                : undefined
                                        }
                                    >
                                        {place.label}
                                    </a>
                                ),
                        )}
                    </nav>
                )}
                <span class="grow" />
                {account.value && (
                    <a
                        class="who"
                        href="/ui/account"
                        aria-current={path === "/ui/account" ? "page" : undefined}
                        aria-label={`Account of ${account.value.tenant}`}
                    >
                        {account.value.tenant}
                    </a>
                )}
            </header>
            {may("read") && <Connection />}
            <main ref={main} id="main" tabIndex={-1}>
                {children}
            </main>
            <Messages />
        </>
    );
}

/** Keeps the stream of events open on every page, so that each of them knows when the server is away. */
function Connection() {
    const version = useRef(facts.value?.version);
    const isOld = useSignal(false);
    useEffect(() => listen(() => undefined), []);
    useEffect(() => {
        let wasConnected = true;
        return connected.subscribe((isConnected) => {
            // A server that comes back may be another version, and may have forgotten who was signed in.
            if (isConnected && !wasConnected)
                loadFacts().then(
                    () => (isOld.value = version.current !== facts.value?.version),
                    () => undefined,
                );
            wasConnected = isConnected;
        });
    }, []);
    return (
        <div role="status">
            {!connected.value && (
                <p class="banner">The server does not answer. This page goes on by itself when it is back.</p>
            )}
            {isOld.value && (
                <p class="banner">
                    The server has a new version.{" "}
                    <button type="button" class="plain" onClick={() => location.reload()}>
                        Load the page again
                    </button>
                </p>
            )}
        </div>
    );
}
