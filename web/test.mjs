// Runs the unit tests: compiles each tests/*.test.ts with esbuild, and gives the result to Node's test runner.
//   node test.mjs                 all of them
//   node test.mjs format escape   those of tests/format.test.ts and tests/escape.test.ts

import { spawnSync } from "node:child_process";
import { readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const outdir = join(here, "node_modules/.cache/tests"); // so that the packages are found from there
const wanted = process.argv.slice(2);
const names = readdirSync(join(here, "tests"))
    .filter((file) => file.endsWith(".test.ts"))
    .map((file) => file.slice(0, -".test.ts".length))
    .filter((name) => wanted.length === 0 || wanted.includes(name));

await build({
    absWorkingDir: here,
    entryPoints: names.map((name) => `tests/${name}.test.ts`),
    inject: ["tests/globals.ts"],
    outdir,
    outExtension: { ".js": ".mjs" },
    bundle: true,
    packages: "external",
    platform: "node",
    format: "esm",
    target: "es2022",
    jsx: "automatic",
    jsxImportSource: "preact",
    sourcemap: "inline",
    logLevel: "warning",
});
const compiled = names.map((name) => join(outdir, `${name}.test.mjs`));
const args = ["--enable-source-maps", "--test", "--test-reporter=spec", ...compiled];
const { status, stdout } = spawnSync(process.execPath, args, {
    encoding: "utf8",
    stdio: ["ignore", "pipe", "inherit"],
});
if (status !== 0) process.stdout.write(stdout);
else console.log(`${/tests (\d+)/.exec(stdout)?.[1]} unit tests of the dashboard passed`);
process.exit(status ?? 1);
