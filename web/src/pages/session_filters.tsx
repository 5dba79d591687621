// Which sessions the list shows.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

import { account, facts, may } from "../account";
import { get } from "../api";
import { useLoaded } from "../parts/load";
import type { Environment, Session } from "../types";

const STATES = ["creating", "running", "lost", "stopping", "ended"];
const TYPING_MS = 300;

export interface Chosen {
    state?: string;
    environment?: string;
    provider?: string;
    worker?: string;
    of?: string;
    search?: string;
}

interface Props {
    chosen: Chosen;
    onChange: (changes: Record<string, string>) => void;
    environments: readonly Environment[];
    sessions: readonly Session[];
}

export function Filters({ chosen, onChange, environments, sessions }: Props) {
    const providers = useSeen(
        sessions.map((one) => one.provider),
        chosen.provider,
    );
    const workers = useSeen(
        sessions.map((one) => one.worker),
        chosen.worker,
    );
    const names = useSeen(
        environments.map((one) => one.name),
        chosen.environment,
    );
    const isCluster = facts.value?.cluster ?? false;
    return (
        <form
            class="row filters"
            role="search"
            aria-label="Filter sessions"
            onSubmit={(event) => event.preventDefault()}
        >
            <Search value={chosen.search ?? ""} onChange={(search) => onChange({ search })} />
            <Choice
                label="State"
                all="Not ended"
                value={chosen.state}
                options={STATES}
                onChange={(state) => onChange({ state })}
            />
            <Choice
                label="Environment"
                all="All"
                value={chosen.environment}
                options={names}
                onChange={(environment) => onChange({ environment })}
            />
            {(providers.length > 1 || chosen.provider) && (
                <Choice
                    label="Provider"
                    all="All"
                    value={chosen.provider}
                    options={providers}
                    onChange={(provider) => onChange({ provider })}
                />
            )}
            {(isCluster || chosen.worker) && (
                <Choice
                    label="Worker"
                    all="All"
                    value={chosen.worker}
                    options={workers}
                    onChange={(worker) => onChange({ worker })}
                />
            )}
            {may("admin") && <Tenant chosen={chosen.of ?? ""} onChange={(of) => onChange({ of })} />}
        </form>
    );
}

/** Values that were seen since the page was opened, so that choosing one does not take the others away. */
function useSeen(values: readonly (string | null | undefined)[], chosen = ""): string[] {
    const seen = useRef(new Set<string>());
    for (const value of [...values, chosen]) if (value) seen.current.add(value);
    return [...seen.current].sort();
}

function Tenant({ chosen, onChange }: { chosen: string; onChange: (of: string) => void }) {
    const keys = useLoaded((signal) => get<{ keys: { tenant: string }[] }>("/api/admin/keys", {}, signal), []);
    const names = useSeen(keys.value.value?.keys.map((key) => key.tenant) ?? [], chosen === "*" ? "" : chosen);
    const others = names.filter((name) => name !== account.value?.tenant);
    return (
        <label>
            Tenant
            <select value={chosen} onChange={(event) => onChange(event.currentTarget.value)}>
                <option value="">Your own</option>
                <option value="*">All</option>
                {others.map((name) => (
                    <option key={name} value={name}>
                        {name}
                    </option>
                ))}
            </select>
        </label>
    );
}

interface ChoiceProps {
    label: string;
    all: string;
    value?: string;
    options: readonly string[];
    onChange: (value: string) => void;
}

function Choice({ label, all, value, options, onChange }: ChoiceProps) {
    return (
        <label>
            {label}
            <select value={value ?? ""} onChange={(event) => onChange(event.currentTarget.value)}>
                <option value="">{all}</option>
                {options.map((option) => (
                    <option key={option} value={option}>
                        {option}
                    </option>
                ))}
            </select>
        </label>
    );
}

/** Searches when the typing pauses. */
function Search({ value, onChange }: { value: string; onChange: (text: string) => void }) {
    const typed = useSignal(value);
    const timer = useRef(0);
    useEffect(() => {
        typed.value = value;
        return () => clearTimeout(timer.current);
    }, [value]);
    function type(text: string) {
        typed.value = text;
        clearTimeout(timer.current);
        timer.current = setTimeout(() => onChange(text.trim()), TYPING_MS);
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
