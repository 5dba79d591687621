// Builds the dashboard into src/warren/http/dashboard/static. The result is committed; the same sources give the same bytes.
//   node build.mjs           writes it
//   node build.mjs --check   fails if the committed bundle is not what the sources give, or if the first page loads too much
//   node build.mjs --sizes   prints what a browser loads, gzipped

import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "../src/warren/http/dashboard/static");
const MAX_KB = 60; // gzipped, of all that a browser loads before the dashboard shows anything
const pages = { "index.html": "main", "embed.html": "embed" };

// Lets every module that is loaded on demand import the application. Then esbuild puts all that the application uses into
// one chunk, instead of one for each set of modules that use it: a browser loads six files at a time.
const app = join(here, "src/app.tsx");
const shareAppChunk = {
    name: "share the chunk of the app",
    setup(build) {
        const lazyModules = new Set();
        build.onResolve({ filter: /^\./ }, async ({ kind, path, resolveDir }) => {
            if (kind !== "dynamic-import") return undefined;
            const found = await build.resolve(path, { kind: "import-statement", resolveDir });
            lazyModules.add(found.path);
            return found;
        });
        build.onLoad({ filter: /\.tsx$/ }, ({ path }) => {
            if (!lazyModules.has(path)) return undefined;
            return { contents: `${readFileSync(path, "utf8")}\nimport ${JSON.stringify(app)};\n`, loader: "tsx" };
        });
    },
};

const result = await build({
    absWorkingDir: here,
    entryPoints: { main: "src/main.tsx", embed: "src/embed.tsx" },
    bundle: true,
    splitting: true,
    format: "esm",
    target: "es2022",
    minify: true,
    write: false,
    metafile: true,
    legalComments: "none",
    jsx: "automatic",
    jsxImportSource: "preact",
    outdir: "out",
    entryNames: "[name]-[hash]",
    chunkNames: "[name]-[hash]",
    assetNames: "[name]-[hash]",
    logLevel: "warning",
    plugins: [shareAppChunk],
});

const files = new Map(result.outputFiles.map((file) => [basename(file.path), Buffer.from(file.contents)]));
const icon = readFileSync(join(here, "icon.svg"));
const iconName = `icon-${createHash("sha256").update(icon).digest("hex").slice(0, 8).toUpperCase()}.svg`;
files.set(iconName, icon);
const firstLoads = {};
for (const [page, entry] of Object.entries(pages)) {
    const outputs = result.metafile.outputs;
    const script = Object.keys(outputs).find((name) => outputs[name].entryPoint === `src/${entry}.tsx`);
    const style = outputs[script].cssBundle;
    const first = staticImports(outputs, script);
    const links = first
        .slice(1)
        .map((name) => `<link rel="modulepreload" nonce="__NONCE__" href="/ui/static/${basename(name)}">`);
    const html = readFileSync(join(here, page), "utf8")
        .replace("<!-- icon -->", `<link rel="icon" type="image/svg+xml" href="/ui/static/${iconName}">`)
        .replace("<!-- styles -->", style ? `<link rel="stylesheet" href="/ui/static/${basename(style)}">` : "")
        .replace(
            "<!-- scripts -->",
            [...links, `<script type="module" nonce="__NONCE__" src="/ui/static/${basename(script)}"></script>`].join(
                "\n",
            ),
        );
    files.set(page, Buffer.from(html));
    firstLoads[page] = [page, ...first.map((name) => basename(name)), ...(style ? [basename(style)] : [])];
}
files.set("LICENSES.txt", Buffer.from(licenses()));

if (process.argv.includes("--check")) check();
else write();
if (process.argv.includes("--sizes")) printSizes();

function staticImports(outputs, name, seen = []) {
    if (seen.includes(name)) return seen;
    seen.push(name);
    for (const { kind, path } of outputs[name].imports)
        if (kind === "import-statement") staticImports(outputs, path, seen);
    return seen;
}

function licenses() {
    const packages = Object.keys(JSON.parse(readFileSync(join(here, "package.json"), "utf8")).dependencies).sort();
    return ["@preact/signals-core", ...packages]
        .sort()
        .map((name) => {
            const folder = join(here, "node_modules", name);
            const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
            const file = readdirSync(folder).find((one) => /^licen[cs]e/i.test(one));
            const text = file ? readFileSync(join(folder, file), "utf8").trim() : license;
            return `${name} ${version} (${license})\n\n${text}\n`;
        })
        .join("\n----\n\n");
}

function write() {
    rmSync(target, { recursive: true, force: true });
    mkdirSync(target, { recursive: true });
    for (const [name, content] of files) writeFileSync(join(target, name), content);
}

function check() {
    const there = existsSync(target) ? readdirSync(target).sort() : [];
    const wanted = [...files.keys()].sort();
    const same =
        String(there) === String(wanted) &&
        wanted.every((name) => readFileSync(join(target, name)).equals(files.get(name)));
    if (!same) {
        console.error("src/warren/http/dashboard/static is not what web/ gives: run `make web` and commit the result");
        process.exit(1);
    }
    const first = kb(firstLoads["index.html"]);
    if (first > MAX_KB) {
        console.error(
            `index.html loads ${first.toFixed(1)} KB at once, more than ${MAX_KB}: use lazy() for what is not needed at once`,
        );
        process.exit(1);
    }
}

function kb(names) {
    return names.reduce((sum, name) => sum + gzipSync(files.get(name), { level: 9 }).length, 0) / 1024;
}

function printSizes() {
    for (const [page, names] of Object.entries(firstLoads))
        console.log(`${kb(names).toFixed(1).padStart(8)} KB  ${page} and what it loads at once`);
    for (const name of files.keys()) console.log(`${kb([name]).toFixed(1).padStart(8)} KB  ${name}`);
}
