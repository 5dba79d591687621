// The frame of every page: navigation, notifications, and a banner while the server is unreachable.

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { useLocation } from "preact-iso/router";

import { onServerReturn, serverReachable, subscribe } from "./api/server_events";
import { account, hasScope, serverInfo } from "./auth/account";
import { loadServerInfo } from "./auth/sign_in";
import { Notifications } from "./components/notifications";
import { allowedRoutes, homePath } from "./routes";

export function Layout({ children }: { children: ComponentChildren }) {
    const { path } = useLocation();
    const main = useRef<HTMLElement>(null);
    const lastPath = useRef(path);
    useEffect(() => {
        // A screen reader begins at the top of the new page.
        if (lastPath.current !== path) main.current!.focus({ preventScroll: true });
        lastPath.current = path;
    }, [path]);
    return (
        <>
            {/* biome-ignore lint/a11y/useValidAnchor: it moves the focus within the page, which the router must not see */}
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
                        {allowedRoutes().map(
                            (route) =>
                                route.label && (
                                    <a
                                        key={route.path}
                                        href={route.path}
                                        aria-current={
                                            path === route.path ||
                                            path.startsWith(`${route.path}/`) ||
                                            (path === "/" && route.path === homePath())
                                                ? "page"
                                                : undefined
                                        }
                                    >
                                        {route.label}
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
            {hasScope("read") && <ConnectionBanner />}
            <main ref={main} id="main" tabIndex={-1}>
                {children}
            </main>
            <Notifications />
        </>
    );
}

/** Keeps the stream of events open on every page, so that each notices when the server becomes unreachable. */
function ConnectionBanner() {
    const version = useRef(serverInfo.value?.version);
    const isOutdated = useSignal(false);
    useEffect(() => subscribe(() => undefined), []);
    useEffect(
        () =>
            // A server that comes back may have another version, and may have forgotten who was signed in.
            onServerReturn(() =>
                loadServerInfo().then(
                    () => (isOutdated.value = version.current !== serverInfo.value?.version),
                    () => undefined,
                ),
            ),
        [],
    );
    return (
        <div role="status">
            {!serverReachable.value && (
                <p class="banner">The server does not answer. This page goes on by itself when it is back.</p>
            )}
            {isOutdated.value && (
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
