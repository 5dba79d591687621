// Describes what a cell threw, without the frames that are ours.
"use strict";

const util = require("node:util");

function errorOf(thrown) {
  if (!util.types.isNativeError(thrown)) {
    const text = util.inspect(thrown);
    return { name: "Error", value: typeof thrown === "string" ? thrown : text, traceback: `Uncaught ${text}` };
  }
  const name = String(thrown.name ?? "Error");
  return { name, value: String(thrown.message), traceback: traceOf(thrown) };
}

// What `util.inspect` says has the causes, and properties such as `code`, too.
function traceOf(thrown) {
  if (!util.types.isNativeError(thrown)) return `Uncaught ${util.inspect(thrown)}`;
  return withoutOurs(util.inspect(thrown));
}

// Node's own frames below the last frame of a user are how we got there.
function withoutOurs(trace) {
  const lines = [];
  let internal = [];
  for (const line of trace.split("\n")) {
    if (!/^\s+at /.test(line)) {
      internal = [];
      lines.push(line);
    } else if (line.includes(__dirname)) {
      internal = [];
    } else if (/\(?node:[\w/]+(:\d+){1,2}\)?( \{)?$/.test(line)) {
      internal.push(line);
    } else {
      lines.push(...internal, line);
      internal = [];
    }
    if (/^\s+at .* \{$/.test(line) && lines.at(-1) !== line && lines.length) lines[lines.length - 1] += " {";
  }
  return lines.join("\n");
}

function syntaxErrorOf(details, cell) {
  const description = details.exception?.description ?? details.text;
  const first = description.split("\n", 1)[0];
  const [, name, value] = /^(\w+): (.*)$/.exec(first) ?? [null, "SyntaxError", first];
  const line = cell.source.split("\n")[details.lineNumber] ?? "";
  const place = `${cell.name}:${details.lineNumber + 1}`;
  return { name, value, traceback: `${place}\n${line}\n${" ".repeat(details.columnNumber)}^\n${first}` };
}

module.exports = { errorOf, syntaxErrorOf, traceOf };
