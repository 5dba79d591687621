import type { ComponentChildren } from "preact";

/** A name and a value of a description list. */
export function Fact({ name, className, children }: { name: string; className?: string; children: ComponentChildren }) {
    return (
        <div>
            <dt>{name}</dt>
            <dd class={className}>{children}</dd>
        </div>
    );
}
