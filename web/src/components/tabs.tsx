// Tabs. The arrow keys move between them; Home and End go to the first and the last.

import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";

import { ErrorBoundary } from "./error_boundary";

export interface Tab {
    id: string;
    label: string;
    onClose?: () => void;
}

interface Props {
    label: string;
    tabs: readonly Tab[];
    selected: string;
    onSelect: (id: string) => void;
    children: ComponentChildren;
    trailing?: ComponentChildren;
    /** The children stay mounted when another tab is selected, and decide themselves what they show. */
    keepMounted?: boolean;
}

export function Tabs({ label, tabs, selected, onSelect, children, trailing, keepMounted }: Props) {
    const list = useRef<HTMLDivElement>(null);
    useEffect(() => {
        // On a narrow screen the list scrolls: bring the selected tab to its middle.
        const element = list.current!;
        const tab = element.querySelector<HTMLElement>('[aria-selected="true"]');
        if (tab)
            element.scrollLeft = Math.max(
                0,
                tab.offsetLeft - element.offsetLeft - (element.clientWidth - tab.offsetWidth) / 2,
            );
    }, [selected]);
    function handleKey(event: KeyboardEvent) {
        const index = tabs.findIndex((tab) => tab.id === selected);
        const target = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: tabs.length - 1 }[event.key];
        const tab = target === undefined ? undefined : tabs[(target + tabs.length) % tabs.length];
        if (!tab) return;
        event.preventDefault();
        onSelect(tab.id);
        list.current!.querySelector<HTMLElement>(`#tab-${CSS.escape(tab.id)}`)?.focus();
    }
    return (
        <div class="tabbed">
            <div class="tabs">
                <div ref={list} role="tablist" aria-label={label} onKeyDown={handleKey}>
                    {tabs.map((tab) => (
                        <span key={tab.id} class="tab">
                            <button
                                type="button"
                                role="tab"
                                id={`tab-${tab.id}`}
                                aria-selected={tab.id === selected}
                                aria-controls={`panel-${tab.id}`}
                                tabIndex={tab.id === selected ? 0 : -1}
                                onClick={() => onSelect(tab.id)}
                            >
                                {tab.label}
                            </button>
                            {tab.onClose && (
                                <button
                                    type="button"
                                    class="quiet"
                                    aria-label={`Close ${tab.label}`}
                                    onClick={tab.onClose}
                                >
                                    ×
                                </button>
                            )}
                        </span>
                    ))}
                </div>
                {trailing}
            </div>
            <div role="tabpanel" id={`panel-${selected}`} aria-labelledby={`tab-${selected}`} class="panel">
                <ErrorBoundary key={keepMounted ? "" : selected}>{children}</ErrorBoundary>
            </div>
        </div>
    );
}
