// The sessions that there are, as they come and go.

import { useEffect } from "preact/hooks";

import { get } from "../api";
import { listen } from "../live";
import { Shown, useLoaded } from "../parts/load";
import { Table } from "../parts/table";
import { duration, secondsUntil } from "../parts/units";
import type { SessionPage } from "../types";

export function SessionsPage() {
    const page = useLoaded((signal) => get<SessionPage>("/api/sessions", {}, signal), []);
    useEffect(() => listen((event) => event.kind.startsWith("session.") && page.again()), []);
    return (
        <section aria-labelledby="title">
            <h1 id="title">Sessions</h1>
            <Shown of={page}>
                {({ sessions }) => (
                    <Table
                        label="Sessions"
                        rows={sessions}
                        keyOf={(session) => session.session_id}
                        empty="There is no session."
                        columns={[
                            { name: "Session", show: (one) => <a href={`/ui/sessions/${one.session_id}`}>{one.session_id}</a> },
                            { name: "State", show: (one) => <span class={`state ${one.state}`}>{one.state}</span> },
                            { name: "Environment", show: (one) => one.environment },
                            { name: "Age", right: true, show: (one) => duration(-secondsUntil(one.created_at)) },
                        ]}
                    />
                )}
            </Shown>
        </section>
    );
}
