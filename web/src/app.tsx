// The beginning: asks the server who is signed in, and shows the page that the address names.

import { useSignal } from "@preact/signals";
import { render } from "preact";
import { useEffect, useLayoutEffect } from "preact/hooks";
import { LocationProvider, Route, Router, useLocation } from "preact-iso/router";

import { account, facts } from "./account";
import { allowed, home } from "./pages";
import { EnterPage, SignInPage } from "./pages/sign_in";
import { Boundary } from "./parts/boundary";
import { describe } from "./parts/messages";
import { useTitle } from "./parts/title";
import { Shell } from "./shell";
import { loadFacts } from "./signing";

const ASK_AGAIN_MS = 3000;

function App() {
    const { path } = useLocation();
    const error = useAsked();
    if (path === "/ui/enter")
        return (
            <Shell>
                <EnterPage />
            </Shell>
        );
    if (!facts.value)
        return (
            <Shell>
                {error && (
                    <p class="note error" role="alert">
                        {error}
                    </p>
                )}
            </Shell>
        );
    if (!account.value)
        return (
            <Shell>
                <SignInPage />
            </Shell>
        );
    return (
        <Shell>
            <Boundary key={path}>
                <Router>
                    {allowed().map((place) => (
                        <Route key={place.path} path={place.path} component={place.component} />
                    ))}
                    <Route path="/" component={Home} />
                    <Route path="/ui" component={Home} />
                    <Route path="/ui/sign-in" component={Home} />
                    <Route default component={NotFound} />
                </Router>
            </Boundary>
        </Shell>
    );
}

/** Asks who is signed in until the server answers, and again when the sign-in expires. */
function useAsked(): string {
    const error = useSignal("");
    const expiresAt = account.value?.expires_at;
    useEffect(() => {
        let timer = 0;
        async function ask() {
            try {
                await loadFacts();
                error.value = "";
            } catch (failure) {
                error.value = describe(failure);
                timer = setTimeout(ask, ASK_AGAIN_MS);
            }
        }
        if (!facts.value) ask();
        else if (expiresAt)
            timer = setTimeout(ask, Math.min(Math.max(Date.parse(expiresAt) - Date.now(), 0) + 1000, 86_400_000));
        return () => clearTimeout(timer);
    }, [expiresAt]);
    return error.value;
}

function Home() {
    const { route } = useLocation();
    useLayoutEffect(() => route(home(), true), []);
    return null;
}

function NotFound() {
    useTitle("Not found");
    return (
        <section aria-labelledby="title">
            <h1 id="title">Not found</h1>
            <p class="note">
                There is no such page, or your key may not see it. <a href={home()}>Go to the first page</a>
            </p>
        </section>
    );
}

render(
    <LocationProvider scope={/^\/(ui\/|$)/}>
        <App />
    </LocationProvider>,
    document.getElementById("app")!,
);
