// Rewrites the module syntax of a cell: `import x from "y"` becomes a declaration, `import()` our function that looks
// from the current folder, `export` goes away. Lines stay where they are. What acorn cannot parse is left to V8.
"use strict";

const acorn = require("./acorn.js");

function rewritten(code) {
  let tree;
  try {
    tree = acorn.parse(code, {
      ecmaVersion: "latest",
      sourceType: "script",
      allowImportExportEverywhere: true,
      allowAwaitOutsideFunction: true,
      allowHashBang: true,
    });
  } catch {
    return code;
  }
  const edits = [];
  for (const node of tree.body) editStatement(node, code, edits);
  editExpressions(tree, edits);
  edits.sort((a, b) => b.start - a.start);
  for (const { start, end, text } of edits) {
    const lines = code.slice(start, end).split("\n").length - text.split("\n").length;
    code = code.slice(0, start) + text + "\n".repeat(Math.max(0, lines)) + code.slice(end);
  }
  return code;
}

function editStatement(node, code, edits) {
  const replace = (start, end, text) => edits.push({ start, end, text });
  if (node.type === "ImportDeclaration") {
    replace(node.start, node.end, declarationOf(node));
  } else if (node.type === "ExportNamedDeclaration" && node.declaration) {
    replace(node.start, node.declaration.start, "");
  } else if (node.type === "ExportDefaultDeclaration") {
    const named = /^(Function|Class)Declaration$/.test(node.declaration.type) && node.declaration.id;
    replace(node.start, node.declaration.start, named ? "" : ";(");
    if (!named) replace(node.declaration.end, node.end, ");");
  } else if (node.type === "ExportAllDeclaration" || node.type === "ExportNamedDeclaration") {
    replace(node.start, node.end, node.source ? `await __import(${node.source.raw});` : ";");
  }
}

function declarationOf(node) {
  const load = `await __import(${node.source.raw}${optionsOf(node)})`;
  if (node.specifiers.length === 0) return `${load};`;
  const space = node.specifiers.find((one) => one.type === "ImportNamespaceSpecifier");
  const names = node.specifiers.filter((one) => one !== space).map(binding);
  if (!space) return `const {${names.join(", ")}} = ${load};`;
  const rest = names.length ? `, {${names.join(", ")}} = ${space.local.name}` : "";
  return `const ${space.local.name} = ${load}${rest};`;
}

function binding(specifier) {
  if (specifier.type === "ImportDefaultSpecifier") return `default: ${specifier.local.name}`;
  const imported = specifier.imported.raw ?? specifier.imported.name;
  return `${imported}: ${specifier.local.name}`;
}

function optionsOf(node) {
  if (!node.attributes?.length) return "";
  const pairs = node.attributes.map((one) => `${one.key.raw ?? one.key.name}: ${one.value.raw}`).join(", ");
  return `, {with: {${pairs}}, assert: {${pairs}}}`;
}

function editExpressions(node, edits) {
  if (node === null || typeof node !== "object") return;
  if (node.type === "ImportExpression") {
    edits.push({ start: node.start, end: node.start + "import".length, text: "__import" });
  } else if (node.type === "MetaProperty" && node.meta.name === "import") {
    edits.push({ start: node.start, end: node.end, text: "__import.meta" });
  }
  for (const key in node) if (key !== "type") editExpressions(node[key], edits);
}

module.exports = { rewritten };
