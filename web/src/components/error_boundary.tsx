// Keeps an error in one part of the page from taking the rest with it, and loads parts on demand.

import { Component, type ComponentChildren, type ComponentType } from "preact";
import { useEffect } from "preact/hooks";
import loadLazily, { ErrorBoundary as SuspenseBoundary } from "preact-iso/lazy";

import { onServerReturn } from "../api/server_events";

/** Renders its children, or a note in their place if one of them throws. */
export class ErrorBoundary extends Component<{ children: ComponentChildren }, { failed: boolean }> {
    override state = { failed: false };

    override componentDidCatch(error: unknown): void {
        console.error(error);
        this.setState({ failed: true });
    }

    render() {
        if (this.state.failed) return <BrokenNote text="This part of the page has failed." />;
        // The inner boundary waits for lazy components; errors pass through it to this one.
        return <SuspenseBoundary>{this.props.children}</SuspenseBoundary>;
    }
}

/** Returns a component that is loaded when it is first rendered. */
export function lazy<Props>(load: () => Promise<ComponentType<Props>>): ComponentType<Props> {
    return loadLazily(() => load().catch((): ComponentType<Props> => NotLoadedNote));
}

/** Shown if the server is unreachable, or has another version of the dashboard by now. */
function NotLoadedNote() {
    // Browsers remember that a script could not be loaded, so only a new page loads it when the server is back.
    useEffect(() => onServerReturn(() => location.reload()), []);
    return <BrokenNote text="This part of the page could not be loaded." />;
}

function BrokenNote({ text }: { text: string }) {
    return (
        <p class="note error" role="alert">
            {text}{" "}
            <button type="button" class="plain" onClick={() => location.reload()}>
                Load the page again
            </button>
        </p>
    );
}
