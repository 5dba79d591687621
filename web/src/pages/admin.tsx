// Administration, with a tab for each part that the account may use.

import { useLocation, useRoute } from "preact-iso/router";

import { hasScope } from "../auth/account";
import { lazy } from "../components/error_boundary";
import { Tabs } from "../components/tabs";
import { useTitle } from "../components/use_title";

const PARTS = [
    {
        id: "environments",
        label: "Environments",
        scopes: ["read"],
        component: lazy(() => import("../admin/environments").then((module) => module.Environments)),
    },
    {
        id: "registry",
        label: "Registry",
        scopes: ["read"],
        component: lazy(() => import("../admin/registry").then((module) => module.Registry)),
    },
    {
        id: "images",
        label: "Images",
        scopes: ["read"],
        component: lazy(() => import("../admin/images").then((module) => module.Images)),
    },
    {
        id: "webhooks",
        label: "Webhooks",
        scopes: ["sessions"],
        component: lazy(() => import("../admin/webhooks").then((module) => module.Webhooks)),
    },
    {
        id: "audit",
        label: "Audit record",
        scopes: ["read", "audit"],
        component: lazy(() => import("../admin/audit").then((module) => module.Audit)),
    },
    {
        id: "keys",
        label: "Keys",
        scopes: ["admin"],
        component: lazy(() => import("../admin/keys").then((module) => module.Keys)),
    },
    {
        id: "tenants",
        label: "Tenants",
        scopes: ["admin"],
        component: lazy(() => import("../admin/tenants").then((module) => module.Tenants)),
    },
    {
        id: "doctor",
        label: "Doctor",
        scopes: ["admin"],
        component: lazy(() => import("../admin/doctor").then((module) => module.Doctor)),
    },
];

export function AdminPage() {
    const { params } = useRoute();
    const { route } = useLocation();
    const parts = PARTS.filter((part) => part.scopes.some(hasScope));
    const part = parts.find(({ id }) => id === params.part) ?? parts[0]!;
    useTitle(part.label);
    return (
        <section aria-labelledby="title">
            <h1 id="title">Administration</h1>
            <Tabs
                label="Parts of the administration"
                tabs={parts}
                selected={part.id}
                onSelect={(id) => route(`/ui/admin/${id}`)}
            >
                <part.component key={part.id} />
            </Tabs>
        </section>
    );
}
