// Turns values into results: what `display(…)` was given, and the last value of a cell.
"use strict";

const util = require("node:util");

const MAX_TEXT = 1 << 20;
const MAX_FIELD = 8 << 20;
const DISPLAY = Symbol.for("Jupyter.display"); // Deno's name for the method that returns {mime type: data}
const FIELDS = {
  "text/plain": "text",
  "text/html": "html",
  "text/markdown": "markdown",
  "image/svg+xml": "svg",
  "image/png": "png",
  "image/jpeg": "jpeg",
  "application/pdf": "pdf",
  "text/latex": "latex",
  "application/json": "json",
  "application/javascript": "javascript",
};

function display(value) {
  return isBundle(value) ? ofBundle(value, false) : resultOf(value, false);
}

function resultOf(value, isMain) {
  const method = value?.[DISPLAY];
  if (typeof method === "function") {
    const bundle = method.call(value);
    if (isBundle(bundle)) return ofBundle({ "text/plain": util.inspect(value), ...bundle }, isMain);
  }
  const bundle = { "text/plain": util.inspect(value, typeof value === "string" ? { maxStringLength: MAX_TEXT } : {}) };
  if (isData(value)) bundle["application/json"] = value;
  return ofBundle(bundle, isMain);
}

function isBundle(value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return false;
  const keys = Object.keys(value);
  return keys.length > 0 && keys.every((key) => /^[\w.+-]+\/[\w.+-]+$/.test(key));
}

// What JSON can hold: arrays, plain objects, and what says itself how to become JSON.
function isData(value) {
  if (value === null || typeof value !== "object" || Buffer.isBuffer(value)) return false;
  if (Array.isArray(value) || typeof value.toJSON === "function") return true;
  const prototype = Object.getPrototypeOf(value);
  return prototype === null || prototype === Object.prototype;
}

function ofBundle(bundle, isMain) {
  const result = { type: "result", is_main_result: isMain };
  const cut = [];
  for (const [mime, given] of Object.entries(bundle)) {
    const field = FIELDS[mime];
    const value = field === "json" ? copied(given) : textOf(given);
    if (value === undefined) continue;
    const name = field ?? mime;
    const size = field === "json" ? JSON.stringify(value).length : value.length;
    if (name === "text" && size > MAX_TEXT) {
      result.text = value.slice(0, MAX_TEXT);
      cut.push(name);
    } else if (size > MAX_FIELD) {
      cut.push(name);
    } else if (field) {
      result[field] = value;
    } else {
      (result.extra ??= {})[mime] = value;
    }
  }
  if (cut.length) result.cut = cut;
  return result;
}

function textOf(value) {
  if (value instanceof Uint8Array) return Buffer.from(value.buffer, value.byteOffset, value.length).toString("base64");
  return typeof value === "string" ? value : JSON.stringify(value) ?? String(value);
}

function copied(value) {
  try {
    return JSON.parse(JSON.stringify(value));
  } catch {
    return undefined; // cycles, BigInt: the text has to do
  }
}

module.exports = { display, resultOf };
