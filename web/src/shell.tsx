// What is around every page.

import type { ComponentChildren } from "preact";
import { useLocation } from "preact-iso";

import { account, facts, may } from "./account";
import { connected } from "./live";
import { Messages } from "./parts/messages";

interface Place {
    href: string;
    label: string;
    scope?: string;
}

const PLACES: readonly Place[] = [
    { href: "/ui/sessions", label: "Sessions" },
    { href: "/ui/machine", label: "Machine", scope: "admin" },
    { href: "/ui/usage", label: "Usage" },
    { href: "/ui/admin", label: "Administration" },
];

export function Shell({ children }: { children: ComponentChildren }) {
    const { path } = useLocation();
    return (
        <>
            <a class="skip" href="#main">Skip to the page</a>
            <header class="top">
                <a class="brand" href="/ui/sessions">Warren</a>
                {account.value && (
                    <nav aria-label="Pages">
                        {PLACES.filter((place) => !place.scope || may(place.scope)).map((place) => (
                            <a key={place.href} href={place.href} aria-current={path.startsWith(place.href) ? "page" : undefined}>
                                {place.label}
                            </a>
                        ))}
                    </nav>
                )}
                <span class="grow" />
                {account.value && facts.value?.mode === "keys" && <a href="/ui/account">{account.value.tenant}</a>}
            </header>
            {!connected.value && <p class="banner" role="alert">The server does not answer. This page goes on by itself when it is back.</p>}
            <main id="main" tabIndex={-1}>{children}</main>
            <Messages />
        </>
    );
}
