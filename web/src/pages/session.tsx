// One session: its terminals, files, code, network and figures, each in a tab of its own.

import { useLocation, useRoute } from "preact-iso/router";

import { get, path } from "../api";
import { lazy } from "../parts/boundary";
import { Shown, useLoaded } from "../parts/load";
import { Tabs } from "../parts/tabs";
import type { Session } from "../types";

export interface TabProps {
    session: Session;
    /** Loads the session again, after something about it was changed. */
    again: () => Promise<void>;
}

const TABS = [
    { id: "details", label: "Details", component: lazy(() => import("../session/details").then((module) => module.Details)) },
];

export function SessionPage() {
    const { params, query } = useRoute();
    const { route } = useLocation();
    const id = params.id ?? "";
    const loaded = useLoaded((signal) => get<Session>(path`/api/sessions/${id}`, {}, signal), [id]);
    const tab = TABS.find((one) => one.id === query.tab) ?? TABS[0]!;
    return (
        <section aria-labelledby="title">
            <h1 id="title">{id}</h1>
            <Shown of={loaded}>
                {(session) => (
                    <Tabs label="Parts of the session" tabs={TABS} chosen={tab.id} onChoose={(name) => route(`/ui/sessions/${id}?tab=${name}`, true)}>
                        <tab.component key={tab.id} session={session} again={loaded.again} />
                    </Tabs>
                )}
            </Shown>
        </section>
    );
}
