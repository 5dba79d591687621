// The pages: their paths, their entries in the navigation, and the scopes they need.

import type { ComponentType } from "preact";

import { hasScope } from "./auth/account";
import { lazy } from "./components/error_boundary";
import { AccountPage } from "./pages/account";
import { SessionsPage } from "./pages/sessions";

export interface PageRoute {
    path: string;
    component: ComponentType;
    label?: string; // in the navigation
    scopes?: readonly string[]; // one of them is needed
}

const AdminPage = lazy(() => import("./pages/admin").then((module) => module.AdminPage));
const ADMIN_SCOPES = ["read", "sessions", "audit"];

export const ROUTES: readonly PageRoute[] = [
    { path: "/ui/sessions", label: "Sessions", scopes: ["read"], component: SessionsPage },
    {
        path: "/ui/sessions/:id",
        scopes: ["read"],
        component: lazy(() => import("./pages/session").then((module) => module.SessionPage)),
    },
    {
        path: "/ui/snapshots",
        label: "Snapshots",
        scopes: ["read"],
        component: lazy(() => import("./pages/snapshots").then((module) => module.SnapshotsPage)),
    },
    {
        path: "/ui/volumes",
        label: "Volumes",
        scopes: ["read"],
        component: lazy(() => import("./pages/volumes").then((module) => module.VolumesPage)),
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
    { path: "/ui/admin", label: "Administration", scopes: ADMIN_SCOPES, component: AdminPage },
    { path: "/ui/admin/:part", scopes: ADMIN_SCOPES, component: AdminPage },
    { path: "/ui/account", component: AccountPage },
];

export function allowedRoutes(): readonly PageRoute[] {
    return ROUTES.filter((route) => !route.scopes || route.scopes.some(hasScope));
}

/** The first page that the account may see. */
export function homePath(): string {
    const routes = allowedRoutes();
    return (routes.find((route) => route.label) ?? routes.find((route) => !route.path.includes(":")))!.path;
}
