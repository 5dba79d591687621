// What went wrong inside a part of the page stays there.

import { Component, type ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import lazyPart, { ErrorBoundary } from "preact-iso/lazy";

import { connected } from "../live";

/** Shows its children; if one of them fails, a note instead, and the rest of the page goes on. */
export class Boundary extends Component<{ children: ComponentChildren }, { failed: boolean }> {
    override state = { failed: false };

    override componentDidCatch(error: unknown): void {
        console.error(error);
        this.setState({ failed: true });
    }

    render() {
        // The inner one waits for parts that are loaded late; what fails comes to this one.
        return this.state.failed ? (
            <Broken what="This part of the page has failed." />
        ) : (
            <ErrorBoundary>{this.props.children}</ErrorBoundary>
        );
    }
}

/** A component that is loaded when it is first shown. */
export function lazy<Part extends (props: any) => any>(load: () => Promise<Part>): Part {
    return lazyPart(() => load().catch(() => NotLoaded as never)) as never;
}

/** The server has another version of the dashboard by now, or it is away. */
function NotLoaded() {
    useEffect(() => {
        // Browsers remember that a script could not be loaded, so only a new page loads it when the server is back.
        let wasConnected = connected.value;
        return connected.subscribe((isConnected) => {
            if (isConnected && !wasConnected) location.reload();
            wasConnected = isConnected;
        });
    }, []);
    return <Broken what="This part of the page could not be loaded." />;
}

function Broken({ what }: { what: string }) {
    return (
        <p class="note error" role="alert">
            {what}{" "}
            <button type="button" class="plain" onClick={() => location.reload()}>
                Load the page again
            </button>
        </p>
    );
}
