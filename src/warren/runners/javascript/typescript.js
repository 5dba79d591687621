// Makes JavaScript of a cell in TypeScript, with what Node has for that from 22.13 on. Types become blanks, so lines and
// columns stay. Enums and the like are more than types: a cell that has some is rewritten.
"use strict";

const { stripTypeScriptTypes } = require("node:module");

const canStrip = typeof stripTypeScriptTypes === "function";

function stripped(code) {
  const { emitWarning } = process;
  process.emitWarning = () => {}; // that Node calls this an experiment is no news for whoever wrote the cell
  try {
    return stripAs(code);
  } catch (error) {
    if (!/^\s*\{/.test(code)) throw error;
    try {
      return stripAs(`(${code}\n)`); // an object
    } catch {
      throw error;
    }
  } finally {
    process.emitWarning = emitWarning;
  }
}

function stripAs(code) {
  try {
    return stripTypeScriptTypes(code);
  } catch (error) {
    if (error.code !== "ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX") throw error;
    return stripTypeScriptTypes(code, { mode: "transform" });
  }
}

module.exports = { canStrip, stripped };
