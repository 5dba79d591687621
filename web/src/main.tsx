// The routes of the dashboard.

import "./style/base.css";
import "./style/parts.css";
import "./style/session.css";

import { render } from "preact";
import { lazy, LocationProvider, Route, Router } from "preact-iso";
import { useEffect } from "preact/hooks";

import { account, facts, type ServerFacts } from "./account";
import { get } from "./api";
import { useLoaded } from "./parts/load";
import { SessionsPage } from "./pages/sessions";
import { SignInPage } from "./pages/sign_in";
import { Shell } from "./shell";

const SessionPage = lazy(() => import("./pages/session").then((module) => module.SessionPage));

function App() {
    const asked = useLoaded(() => get<ServerFacts>("/api/ui/session"), []);
    useEffect(() => asked.value.subscribe((found) => found && (facts.value = found)), []);
    if (!facts.value) return <Shell>{asked.error.value && <p class="note error" role="alert">{asked.error.value}</p>}</Shell>;
    if (!account.value) return <Shell><SignInPage /></Shell>;
    return (
        <Shell>
            <Router>
                <Route path="/" component={SessionsPage} />
                <Route path="/ui/sessions" component={SessionsPage} />
                <Route path="/ui/sessions/:id" component={SessionPage} />
                <Route default component={NotFound} />
            </Router>
        </Shell>
    );
}

function NotFound() {
    return <p class="note">There is no such page. <a href="/ui/sessions">Sessions</a></p>;
}

render(<LocationProvider><App /></LocationProvider>, document.getElementById("app")!);
