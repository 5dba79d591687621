// The application: asks the server who is signed in, and renders the page of the address.

import { useSignal } from "@preact/signals";
import { render } from "preact";
import { useEffect, useLayoutEffect } from "preact/hooks";
import { LocationProvider, Route, Router, useLocation } from "preact-iso/router";

import { account, serverInfo } from "./auth/account";
import { loadServerInfo } from "./auth/sign_in";
import { ErrorBoundary } from "./components/error_boundary";
import { ErrorNote } from "./components/error_note";
import { errorMessage } from "./components/notifications";
import { useTitle } from "./components/use_title";
import { Layout } from "./layout";
import { EnterPage, SignInPage } from "./pages/sign_in";
import { allowedRoutes, homePath } from "./routes";

const RETRY_MS = 3000;

function App() {
    const { path } = useLocation();
    const error = useServerInfo();
    if (path === "/ui/enter")
        return (
            <Layout>
                <EnterPage />
            </Layout>
        );
    if (!serverInfo.value)
        return (
            <Layout>
                <ErrorNote text={error} />
            </Layout>
        );
    if (!account.value)
        return (
            <Layout>
                <SignInPage />
            </Layout>
        );
    return (
        <Layout>
            <ErrorBoundary key={path}>
                <Router>
                    {allowedRoutes().map((route) => (
                        <Route key={route.path} path={route.path} component={route.component} />
                    ))}
                    <Route path="/" component={RedirectHome} />
                    <Route path="/ui" component={RedirectHome} />
                    <Route path="/ui/sign-in" component={RedirectHome} />
                    <Route default component={NotFoundPage} />
                </Router>
            </ErrorBoundary>
        </Layout>
    );
}

/** Loads who is signed in, retrying until the server answers, and again when the sign-in expires. Returns the error of
 *  the last attempt. */
function useServerInfo(): string {
    const error = useSignal("");
    const expiresAt = account.value?.expires_at;
    useEffect(() => {
        let timer: ReturnType<typeof setTimeout> | undefined;
        async function load() {
            try {
                await loadServerInfo();
                error.value = "";
            } catch (failure) {
                error.value = errorMessage(failure);
                timer = setTimeout(load, RETRY_MS);
            }
        }
        if (!serverInfo.value) load();
        else if (expiresAt)
            timer = setTimeout(load, Math.min(Math.max(Date.parse(expiresAt) - Date.now(), 0) + 1000, 86_400_000));
        return () => clearTimeout(timer);
    }, [expiresAt]);
    return error.value;
}

function RedirectHome() {
    const { route } = useLocation();
    useLayoutEffect(() => route(homePath(), true), []);
    return null;
}

function NotFoundPage() {
    useTitle("Not found");
    return (
        <section aria-labelledby="title">
            <h1 id="title">Not found</h1>
            <p class="note">
                There is no such page, or your key may not see it. <a href={homePath()}>Go to the first page</a>
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
