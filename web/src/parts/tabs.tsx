// Tabs with the keys that people expect: left and right move, Home and End jump.

import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";

import { Boundary } from "./boundary";

export interface Tab {
    id: string;
    label: string;
    onClose?: () => void;
}

interface Props {
    label: string;
    tabs: readonly Tab[];
    chosen: string;
    onChoose: (id: string) => void;
    children: ComponentChildren;
    after?: ComponentChildren;
    /** The children choose what they show themselves, and stay when another tab is chosen. */
    keep?: boolean;
}

export function Tabs({ label, tabs, chosen, onChoose, children, after, keep }: Props) {
    const list = useRef<HTMLDivElement>(null);
    useEffect(() => {
        // On a narrow screen the tabs are wider than it.
        const element = list.current!;
        const tab = element.querySelector<HTMLElement>('[aria-selected="true"]');
        if (tab)
            element.scrollLeft = Math.max(
                0,
                tab.offsetLeft - element.offsetLeft - (element.clientWidth - tab.offsetWidth) / 2,
            );
    }, [chosen]);
    function move(event: KeyboardEvent) {
        const at = tabs.findIndex((tab) => tab.id === chosen);
        const target = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: tabs.length - 1 }[event.key];
        const tab = target === undefined ? undefined : tabs[(target + tabs.length) % tabs.length];
        if (!tab) return;
        event.preventDefault();
        onChoose(tab.id);
        list.current!.querySelector<HTMLElement>(`#tab-${CSS.escape(tab.id)}`)?.focus();
    }
    return (
        <div class="tabbed">
            <div class="tabs">
                <div ref={list} role="tablist" aria-label={label} onKeyDown={move}>
                    {tabs.map((tab) => (
                        <span key={tab.id} class="tab">
                            <button
                                type="button"
                                role="tab"
                                id={`tab-${tab.id}`}
                                aria-selected={tab.id === chosen}
                                aria-controls={`panel-${tab.id}`}
                                tabIndex={tab.id === chosen ? 0 : -1}
                                onClick={() => onChoose(tab.id)}
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
                {after}
            </div>
            <div role="tabpanel" id={`panel-${chosen}`} aria-labelledby={`tab-${chosen}`} class="panel">
                <Boundary key={keep ? "" : chosen}>{children}</Boundary>
            </div>
        </div>
    );
}
