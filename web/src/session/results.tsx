// One result of a cell. It comes from the sandbox and cannot be trusted: text stays text, pictures are shown as images, in
// which no script runs, and of HTML only the source is shown. Charts and tables are drawn from their data.

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";

import { apiPath, post, request } from "../api/client";
import { saveBlob } from "../api/transfers";
import { hasScope } from "../auth/account";
import { JsonTree } from "../components/json_tree";
import { runAction } from "../components/notifications";
import { decodeBase64 } from "../lib/base64";
import { stripEscapeSequences } from "../lib/escape";
import { canDraw } from "./chart_data";
import { Chart } from "./charts";
import type { Result } from "./notebook";

const MAX_SOURCE = 100_000;
const MAX_ROWS = 100;
const MAX_COLUMNS = 50;

interface Format {
    label: string;
    render: (value: unknown) => ComponentChildren;
    type: string;
    extension: string;
    base64?: boolean;
}

const FORMATS: Record<string, Format> = {
    png: {
        label: "Picture",
        render: (value) => <Picture type="image/png" data={value} />,
        type: "image/png",
        extension: "png",
        base64: true,
    },
    jpeg: {
        label: "Picture",
        render: (value) => <Picture type="image/jpeg" data={value} />,
        type: "image/jpeg",
        extension: "jpg",
        base64: true,
    },
    svg: {
        label: "Drawing",
        render: (value) => <Drawing source={String(value)} />,
        type: "image/svg+xml",
        extension: "svg",
    },
    chart: {
        label: "Chart",
        render: (value) => canDraw(value) && <Chart chart={value} />,
        type: "application/json",
        extension: "chart.json",
    },
    data: {
        label: "Table",
        render: (value) => <DataTable columns={value as Record<string, unknown>} />,
        type: "application/json",
        extension: "json",
    },
    text: {
        label: "Text",
        render: (value) => <pre>{stripEscapeSequences(String(value))}</pre>,
        type: "text/plain",
        extension: "txt",
    },
    json: { label: "JSON", render: (value) => <JsonTree value={value} />, type: "application/json", extension: "json" },
    markdown: { label: "Markdown", render: (value) => <Source text={value} />, type: "text/plain", extension: "md" },
    latex: { label: "LaTeX", render: (value) => <Source text={value} />, type: "text/plain", extension: "tex" },
    html: { label: "HTML source", render: (value) => <Source text={value} />, type: "text/plain", extension: "html" },
    javascript: {
        label: "JavaScript source",
        render: (value) => <Source text={value} />,
        type: "text/plain",
        extension: "js",
    },
    pdf: {
        label: "PDF",
        render: () => <p class="note">Download it to read it.</p>,
        type: "application/octet-stream",
        extension: "pdf",
        base64: true,
    },
    extra: {
        label: "More",
        render: (value) => <JsonTree value={value} />,
        type: "application/json",
        extension: "json",
    },
};

export function ResultView({ result, sessionId, name }: { result: Result; sessionId: string; name: string }) {
    const formats = Object.keys(FORMATS).filter((format) => hasContent(format, result[format]));
    const selected = useSignal("");
    const format = formats.includes(selected.value) ? selected.value : formats[0];
    if (!format)
        return (
            <p class="note">
                {Array.isArray(result.cut)
                    ? `Too large to be shown: ${result.cut.join(", ")}`
                    : "A result without content"}
            </p>
        );
    const { render, extension } = FORMATS[format]!;
    const fileName = `${name}.${extension}`;
    return (
        <div class="result">
            {render(result[format])}
            <div class="result-bar">
                {formats.length > 1 && (
                    <span role="group" aria-label="Show it as">
                        {formats.map((other) => (
                            <button
                                key={other}
                                type="button"
                                class="quiet"
                                aria-pressed={other === format}
                                onClick={() => (selected.value = other)}
                            >
                                {FORMATS[other]!.label}
                            </button>
                        ))}
                    </span>
                )}
                <span class="grow" />
                <button type="button" class="quiet" onClick={() => saveBlob(toBlob(format, result[format]), fileName)}>
                    Download
                </button>
                {hasScope("files") && (
                    <button
                        type="button"
                        class="quiet"
                        onClick={() =>
                            runAction(
                                () => saveAsArtifact(sessionId, fileName, toBlob(format, result[format])),
                                `Saved as artifact ${fileName}`,
                            )
                        }
                    >
                        Save as artifact
                    </button>
                )}
            </div>
        </div>
    );
}

function hasContent(format: string, value: unknown): boolean {
    if (value === undefined || value === null || value === "") return false;
    if (format === "chart") return canDraw(value);
    if (format === "data" || format === "extra") return typeof value === "object" && Object.keys(value).length > 0;
    return format === "json" || typeof value === "string";
}

function toBlob(format: string, value: unknown): Blob {
    const { type, base64 } = FORMATS[format]!;
    if (base64) return new Blob([bytesOf(String(value))], { type });
    return new Blob([typeof value === "string" ? value : JSON.stringify(value, null, 2)], { type });
}

function bytesOf(base64: string): Uint8Array<ArrayBuffer> {
    try {
        return decodeBase64(base64.replace(/\s/g, ""));
    } catch {
        return new Uint8Array();
    }
}

/** Saves by way of a file in the sandbox, because artifacts are made of files. */
async function saveAsArtifact(sessionId: string, name: string, content: Blob): Promise<void> {
    const path = `/workspace/artifacts/${Date.now().toString(36)}-${name}`;
    await request("PUT", apiPath`/api/sessions/${sessionId}/files/content`, { query: { path }, body: content });
    await post(apiPath`/api/sessions/${sessionId}/artifacts`, { paths: [path] });
}

function Picture({ type, data }: { type: string; data: unknown }) {
    return (
        <img
            class="picture"
            // biome-ignore lint/a11y/noRedundantAlt: the text tells a picture from a drawing
            alt="The picture that the cell has drawn"
            src={`data:${type};base64,${String(data).replace(/[^A-Za-z0-9+/=]/g, "")}`}
        />
    );
}

function Drawing({ source }: { source: string }) {
    const wellFormed = new TextDecoder().decode(new TextEncoder().encode(source)); // a lone surrogate cannot stand in a URL
    return (
        <img
            class="picture"
            alt="The drawing that the cell has made"
            src={`data:image/svg+xml;charset=utf-8,${encodeURIComponent(wellFormed)}`}
        />
    );
}

function Source({ text }: { text: unknown }) {
    const source = String(text);
    return (
        <pre class="source">
            {source.length > MAX_SOURCE ? `${source.slice(0, MAX_SOURCE)}\n… (${source.length} characters)` : source}
        </pre>
    );
}

/** Shows a table that is given by its columns, such as a data frame. */
function DataTable({ columns }: { columns: Record<string, unknown> }) {
    const names = Object.keys(columns).slice(0, MAX_COLUMNS);
    const cells = names.map((name) => (Array.isArray(columns[name]) ? (columns[name] as unknown[]) : [columns[name]]));
    const rows = cells.reduce((most, column) => Math.max(most, column.length), 0);
    const hiddenColumns = Object.keys(columns).length - names.length;
    return (
        <div class="data" tabIndex={0} role="region" aria-label="Table">
            <table class="wide">
                <thead>
                    <tr>
                        <th scope="col" />
                        {names.map((name) => (
                            <th key={name} scope="col">
                                {name}
                            </th>
                        ))}
                    </tr>
                </thead>
                <tbody>
                    {Array.from({ length: Math.min(rows, MAX_ROWS) }, (_, row) => (
                        <tr key={row}>
                            <th scope="row">{row}</th>
                            {cells.map((column, index) => (
                                <td key={index} class={typeof column[row] === "number" ? "right" : ""}>
                                    {cellText(column[row])}
                                </td>
                            ))}
                        </tr>
                    ))}
                </tbody>
            </table>
            {(rows > MAX_ROWS || hiddenColumns > 0) && (
                <p class="note">
                    {rows} rows and {names.length + hiddenColumns} columns; the first are shown.
                </p>
            )}
        </div>
    );
}

function cellText(value: unknown): string {
    if (value === null || value === undefined) return "";
    return (typeof value === "object" ? JSON.stringify(value) : String(value)).slice(0, 500);
}
