// One result of a cell. It is a stranger's: text stays text, pictures are shown as images, in which nothing runs, and HTML
// is not rendered at all, only shown as its source. Charts and tables are drawn from their data.

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";

import { may } from "../account";
import { path, post, request } from "../api";
import { JsonTree } from "../parts/json_tree";
import { attempt } from "../parts/messages";
import { Chart, canDraw } from "./charts";
import { type Result, withoutEscapes } from "./notebook";

const MOST_SOURCE = 100_000;
const MOST_ROWS = 100;
const MOST_COLUMNS = 50;

interface Format {
    label: string;
    show: (value: any) => ComponentChildren;
    type: string;
    ending: string;
    base64?: boolean;
}

const FORMATS: Record<string, Format> = {
    png: {
        label: "Picture",
        show: (value) => <Picture type="image/png" data={value} />,
        type: "image/png",
        ending: "png",
        base64: true,
    },
    jpeg: {
        label: "Picture",
        show: (value) => <Picture type="image/jpeg" data={value} />,
        type: "image/jpeg",
        ending: "jpg",
        base64: true,
    },
    svg: {
        label: "Drawing",
        show: (value) => <Drawing source={String(value)} />,
        type: "image/svg+xml",
        ending: "svg",
    },
    chart: { label: "Chart", show: (value) => <Chart chart={value} />, type: "application/json", ending: "chart.json" },
    data: { label: "Table", show: (value) => <DataTable columns={value} />, type: "application/json", ending: "json" },
    text: {
        label: "Text",
        show: (value) => <pre>{withoutEscapes(String(value))}</pre>,
        type: "text/plain",
        ending: "txt",
    },
    json: { label: "JSON", show: (value) => <JsonTree value={value} />, type: "application/json", ending: "json" },
    markdown: { label: "Markdown", show: (value) => <Source text={value} />, type: "text/plain", ending: "md" },
    latex: { label: "LaTeX", show: (value) => <Source text={value} />, type: "text/plain", ending: "tex" },
    html: { label: "HTML source", show: (value) => <Source text={value} />, type: "text/plain", ending: "html" },
    javascript: {
        label: "JavaScript source",
        show: (value) => <Source text={value} />,
        type: "text/plain",
        ending: "js",
    },
    pdf: {
        label: "PDF",
        show: () => <p class="note">Download it to read it.</p>,
        type: "application/octet-stream",
        ending: "pdf",
        base64: true,
    },
    extra: { label: "More", show: (value) => <JsonTree value={value} />, type: "application/json", ending: "json" },
};

export function ResultView({ result, sessionId, name }: { result: Result; sessionId: string; name: string }) {
    const formats = Object.keys(FORMATS).filter((format) => isThere(format, result[format]));
    const chosen = useSignal("");
    const format = formats.includes(chosen.value) ? chosen.value : formats[0];
    if (!format)
        return (
            <p class="note">
                {Array.isArray(result.cut)
                    ? `Too large to be shown: ${result.cut.join(", ")}`
                    : "A result without content"}
            </p>
        );
    const { show, ending } = FORMATS[format]!;
    const file = `${name}.${ending}`;
    return (
        <div class="result">
            {show(result[format])}
            <div class="result-bar">
                {formats.length > 1 && (
                    <span role="group" aria-label="Show it as">
                        {formats.map((one) => (
                            <button
                                key={one}
                                type="button"
                                class="quiet"
                                aria-pressed={one === format}
                                onClick={() => (chosen.value = one)}
                            >
                                {FORMATS[one]!.label}
                            </button>
                        ))}
                    </span>
                )}
                <span class="grow" />
                <button type="button" class="quiet" onClick={() => saveHere(blobOf(format, result[format]), file)}>
                    Download
                </button>
                {may("files") && (
                    <button
                        type="button"
                        class="quiet"
                        onClick={() =>
                            attempt(
                                () => saveAsArtifact(sessionId, file, blobOf(format, result[format])),
                                `Saved as artifact ${file}`,
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

function isThere(format: string, value: unknown): boolean {
    if (value === undefined || value === null || value === "") return false;
    if (format === "chart") return canDraw(value);
    if (format === "data" || format === "extra") return typeof value === "object" && Object.keys(value).length > 0;
    return format === "json" || typeof value === "string";
}

function blobOf(format: string, value: unknown): Blob {
    const { type, base64 } = FORMATS[format]!;
    if (base64) return new Blob([bytesOf(String(value))], { type });
    return new Blob([typeof value === "string" ? value : JSON.stringify(value, null, 2)], { type });
}

function bytesOf(base64: string): Uint8Array<ArrayBuffer> {
    try {
        return Uint8Array.from(atob(base64.replace(/\s/g, "")), (one) => one.charCodeAt(0));
    } catch {
        return new Uint8Array();
    }
}

function saveHere(blob: Blob, name: string): void {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** Through a file of the sandbox: artifacts are made of files. */
async function saveAsArtifact(sessionId: string, name: string, content: Blob): Promise<void> {
    const file = `/workspace/artifacts/${Date.now().toString(36)}-${name}`;
    await request("PUT", path`/api/sessions/${sessionId}/files/content`, { query: { path: file }, body: content });
    await post(path`/api/sessions/${sessionId}/artifacts`, { paths: [file] });
}

/** As data: of an image, which a browser shows and in which no script runs. */
function Picture({ type, data }: { type: string; data: unknown }) {
    return (
        <img
            class="picture"
            alt="The picture that the cell has drawn"
            src={`data:${type};base64,${String(data).replace(/[^A-Za-z0-9+/=]/g, "")}`}
        />
    );
}

function Drawing({ source }: { source: string }) {
    const wellFormed = new TextDecoder().decode(new TextEncoder().encode(source)); // half a character cannot be in an address
    return (
        <img
            class="picture"
            alt="The drawing that the cell has made"
            src={`data:image/svg+xml;charset=utf-8,${encodeURIComponent(wellFormed)}`}
        />
    );
}

function Source({ text }: { text: unknown }) {
    const whole = String(text);
    return (
        <pre class="source">
            {whole.length > MOST_SOURCE ? `${whole.slice(0, MOST_SOURCE)}\n… (${whole.length} characters)` : whole}
        </pre>
    );
}

/** A table by columns, such as a data frame has. */
function DataTable({ columns }: { columns: Record<string, unknown> }) {
    const names = Object.keys(columns).slice(0, MOST_COLUMNS);
    const cells = names.map((name) => (Array.isArray(columns[name]) ? (columns[name] as unknown[]) : [columns[name]]));
    const rows = cells.reduce((most, column) => Math.max(most, column.length), 0);
    const left = Object.keys(columns).length - names.length;
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
                    {Array.from({ length: Math.min(rows, MOST_ROWS) }, (_, row) => (
                        <tr key={row}>
                            <th scope="row">{row}</th>
                            {cells.map((column, at) => (
                                <td key={at} class={typeof column[row] === "number" ? "right" : ""}>
                                    {cellText(column[row])}
                                </td>
                            ))}
                        </tr>
                    ))}
                </tbody>
            </table>
            {(rows > MOST_ROWS || left > 0) && (
                <p class="note">
                    {rows} rows and {names.length + left} columns; the first are shown.
                </p>
            )}
        </div>
    );
}

function cellText(value: unknown): string {
    if (value === null || value === undefined) return "";
    return (typeof value === "object" ? JSON.stringify(value) : String(value)).slice(0, 500);
}
