// The filters of the list of sessions.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

import { get } from "../api/client";
import type { EnvironmentView, KeyList, SessionView } from "../api/schemas";
import { account, hasScope, serverInfo } from "../auth/account";
import { SelectField } from "../components/fields";
import { useRequest } from "../components/request";

const STATES = ["creating", "running", "paused", "hibernated", "lost", "stopping", "ended"];
const TYPING_PAUSE_MS = 300;

export interface Filters {
    state?: string;
    environment?: string;
    provider?: string;
    worker?: string;
    of?: string;
    search?: string;
}

interface Props {
    filters: Filters;
    onChange: (changes: Record<string, string>) => void;
    environments: readonly EnvironmentView[];
    sessions: readonly SessionView[];
}

export function SessionFilters({ filters, onChange, environments, sessions }: Props) {
    const known = {
        state: STATES,
        environment: useKnownValues(
            environments.map((environment) => environment.name),
            filters.environment,
        ),
        provider: useKnownValues(
            sessions.map((session) => session.provider),
            filters.provider,
        ),
        worker: useKnownValues(
            sessions.map((session) => session.worker),
            filters.worker,
        ),
    };
    const select = (label: string, field: keyof typeof known, all = "All") => (
        <SelectField
            label={label}
            value={filters[field] ?? ""}
            options={[["", all], ...known[field].map((value) => [value, value] as const)]}
            onChange={(value) => onChange({ [field]: value })}
        />
    );
    return (
        <form
            class="row filters"
            role="search"
            aria-label="Filter sessions"
            onSubmit={(event) => event.preventDefault()}
        >
            <SearchField value={filters.search ?? ""} onChange={(search) => onChange({ search })} />
            {select("State", "state", "Not ended")}
            {select("Environment", "environment")}
            {(known.provider.length > 1 || filters.provider) && select("Provider", "provider")}
            {(serverInfo.value?.cluster || filters.worker) && select("Worker", "worker")}
            {hasScope("admin") && <TenantSelect value={filters.of ?? ""} onChange={(of) => onChange({ of })} />}
        </form>
    );
}

/** Returns all values since the page was opened, so that selecting one does not remove the others. */
function useKnownValues(values: readonly (string | null)[], selected = ""): string[] {
    const known = useRef(new Set<string>());
    for (const value of [...values, selected]) if (value) known.current.add(value);
    return [...known.current].sort();
}

function TenantSelect({ value, onChange }: { value: string; onChange: (tenant: string) => void }) {
    const keys = useRequest((signal) => get<KeyList>("/api/admin/keys", {}, signal), []);
    const tenants = useKnownValues(keys.data.value?.keys.map((key) => key.tenant) ?? [], value === "*" ? "" : value);
    const others = tenants.filter((tenant) => tenant !== account.value?.tenant);
    return (
        <SelectField
            label="Tenant"
            value={value}
            options={[["", "Your own"], ["*", "All"], ...others.map((tenant) => [tenant, tenant] as const)]}
            onChange={onChange}
        />
    );
}

/** Searches when the typing pauses. */
function SearchField({ value, onChange }: { value: string; onChange: (text: string) => void }) {
    const typed = useSignal(value);
    const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
    useEffect(() => {
        typed.value = value;
        return () => clearTimeout(timer.current);
    }, [value]);
    function type(text: string) {
        typed.value = text;
        clearTimeout(timer.current);
        timer.current = setTimeout(() => onChange(text.trim()), TYPING_PAUSE_MS);
    }
    return (
        <label class="search">
            Search
            <input
                type="search"
                maxLength={255}
                placeholder="Thread, id or metadata"
                value={typed.value}
                onInput={(event) => type(event.currentTarget.value)}
            />
        </label>
    );
}
