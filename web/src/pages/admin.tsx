// Administration: each part for those who may use it.

import { useLocation, useRoute } from "preact-iso/router";

import { may } from "../account";
import { lazy } from "../parts/boundary";
import { Tabs } from "../parts/tabs";
import { useTitle } from "../parts/title";

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
    const parts = PARTS.filter((part) => part.scopes.some(may));
    const part = parts.find((one) => one.id === params.part) ?? parts[0]!;
    useTitle(part.label);
    return (
        <section aria-labelledby="title">
            <h1 id="title">Administration</h1>
            <Tabs
                label="Parts of the administration"
                tabs={parts}
                chosen={part.id}
                onChoose={(id) => route(`/ui/admin/${id}`)}
            >
                <part.component key={part.id} />
            </Tabs>
        </section>
    );
}
