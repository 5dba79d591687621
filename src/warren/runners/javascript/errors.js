// Describes what a cell threw, without the frames that are ours.
"use strict";

const util = require("node:util");

const MAX_VALUE = 16_384;
const MAX_TRACEBACK = 131_072;

function errorOf(thrown) {
  if (!util.types.isNativeError(thrown)) {
    const text = util.inspect(thrown);
    return described("Error", typeof thrown === "string" ? thrown : text, `Uncaught ${text}`);
  }
  return described(String(thrown.name ?? "Error"), String(thrown.message), traceOf(thrown));
}

function described(name, value, traceback) {
  return { name, value: shortened(value, MAX_VALUE), traceback: shortened(traceback, MAX_TRACEBACK) };
}

// No half of a character stays at the cut.
function shortened(text, most) {
  if (text.length <= most) return text;
  const [first, last] = [text.slice(0, most / 2), text.slice(-most / 2)];
  const left = `\n… ${text.length - most} characters are left out here …\n`;
  return first.replace(/[\ud800-\udbff]$/, "") + left + last.replace(/^[\udc00-\udfff]/, "");
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
  return described(name, value, `${place}\n${line}\n${" ".repeat(details.columnNumber)}^\n${first}`);
}

module.exports = { errorOf, syntaxErrorOf, traceOf };
