// The pages: which address belongs to which, and which of them the navigation shows to whom.

import { may } from "./account";
import { AccountPage } from "./pages/account";
import { SessionsPage } from "./pages/sessions";
import { lazy } from "./parts/boundary";

export interface Place {
    path: string;
    component: (props: any) => any;
    label?: string; // in the navigation
    scopes?: readonly string[]; // one of them is needed
}

const AdminPage = lazy(() => import("./pages/admin").then((module) => module.AdminPage));

export const PLACES: readonly Place[] = [
    { path: "/ui/sessions", label: "Sessions", scopes: ["read"], component: SessionsPage },
    {
        path: "/ui/sessions/:id",
        scopes: ["read"],
        component: lazy(() => import("./pages/session").then((module) => module.SessionPage)),
    },
    {
        path: "/ui/machine",
        label: "Machine",
        scopes: ["admin"],
        component: lazy(() => import("./pages/machine").then((module) => module.MachinePage)),
    },
    {
        path: "/ui/usage",
        label: "Usage",
        scopes: ["read", "audit"],
        component: lazy(() => import("./pages/usage").then((module) => module.UsagePage)),
    },
    { path: "/ui/admin", label: "Administration", scopes: ["read", "sessions", "audit"], component: AdminPage },
    { path: "/ui/admin/:part", scopes: ["read", "sessions", "audit"], component: AdminPage },
    { path: "/ui/account", component: AccountPage },
];

export function allowed(): readonly Place[] {
    return PLACES.filter((place) => !place.scopes || place.scopes.some(may));
}

/** Where somebody goes who names no page. */
export function home(): string {
    return (allowed().find((place) => place.label) ?? allowed().find((place) => !place.path.includes(":")))!.path;
}
