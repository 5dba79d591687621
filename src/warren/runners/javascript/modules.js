// Rewrites the module syntax of a cell: `import x from "y"` becomes a declaration, `import()` our function that looks
// from the current folder, `export` goes away. Lines stay where they are. What is no valid module is left to V8, whose
// error says what is wrong with it.
"use strict";

const { isMember, tokensOf } = require("./tokens.js");

const DECLARATIONS = new Set(["async", "class", "const", "function", "let", "var"]);

function rewritten(code) {
  let edits;
  try {
    edits = new Rewriter(tokensOf(code)).findEdits();
  } catch {
    return code;
  }
  for (const { start, end, text } of edits.reverse()) {
    const lines = code.slice(start, end).split("\n").length - text.split("\n").length;
    code = code.slice(0, start) + text + "\n".repeat(Math.max(0, lines)) + code.slice(end);
  }
  return code;
}

class Rewriter {
  constructor(tokens) {
    this.tokens = tokens;
    this.at = 0;
    this.edits = [];
  }

  // Returns the edits, first to last: each replaces what is between `start` and `end` by `text`.
  findEdits() {
    while (this.at < this.tokens.length) {
      const token = this.tokens[this.at];
      this.at += 1;
      if (token.type !== "word" || isMember(this.tokens[token.index - 1])) continue;
      if (token.text === "import") this.editImport(token);
      else if (token.text === "export" && token.frame.outer === null) this.editExport(token);
    }
    return this.edits;
  }

  editImport(token) {
    const next = this.peek();
    if (next?.text === "(") {
      if (!this.isMethod(next)) this.replace(token.start, token.end, "__import");
    } else if (next?.text === "." && this.peek(1)?.text === "meta") {
      this.at += 2;
      this.replace(token.start, this.previous.end, "__import.meta");
    } else if (token.frame.outer === null) {
      const text = this.readImport();
      this.replace(token.start, this.previous.end, text);
    }
  }

  // Whether `import(…)` defines a method of that name in an object or a class.
  isMethod(bracket) {
    const after = this.tokens[bracket.partner.index + 1];
    return ["class", "object"].includes(bracket.frame.kind) && after?.text === "{";
  }

  // Reads the rest of a declaration and returns what takes its place.
  readImport() {
    if (this.peek()?.type === "string") return `${this.readSource()};`;
    const names = [];
    let space = "";
    if (this.peek()?.type === "word") {
      names.push(`default: ${this.take("word")}`);
      if (this.peek()?.text === ",") this.take(",");
      else return this.declare(space, names);
    }
    if (this.peek()?.text === "*") {
      this.take("*");
      this.take("as");
      space = this.take("word");
    } else {
      names.push(...this.readNames());
    }
    return this.declare(space, names);
  }

  declare(space, names) {
    this.take("from");
    const load = this.readSource();
    const pattern = `{${names.join(", ")}}`;
    if (!space) return `const ${pattern} = ${load};`;
    return `const ${space} = ${load}${names.length ? `, ${pattern} = ${space}` : ""};`;
  }

  readNames() {
    const names = [];
    this.take("{");
    while (this.peek()?.text !== "}") {
      const imported = this.take("word", "string");
      const local = this.peek()?.text === "as" ? this.take("as") && this.take("word") : imported;
      names.push(`${imported}: ${local}`);
      if (this.peek()?.text !== "}") this.take(",");
    }
    this.take("}");
    return names;
  }

  // Reads the name of a module, attributes and the end of the statement; returns what loads the module.
  readSource() {
    const name = this.take("string");
    const options = this.peek()?.text === "with" && this.peek(1)?.text === "{" ? this.readAttributes() : "";
    this.endStatement();
    return `await __import(${name}${options})`;
  }

  readAttributes() {
    const pairs = [];
    this.take("with");
    this.take("{");
    while (this.peek()?.text !== "}") {
      const key = this.take("word", "string");
      this.take(":");
      pairs.push(`${key}: ${this.take("string")}`);
      if (this.peek()?.text !== "}") this.take(",");
    }
    this.take("}");
    const all = pairs.join(", ");
    return pairs.length ? `, {with: {${all}}, assert: {${all}}}` : "";
  }

  endStatement() {
    const next = this.peek();
    if (next?.text === ";") this.take(";");
    else if (next !== undefined && !next.beginsLine) throw new SyntaxError("a statement does not end");
  }

  editExport(token) {
    const next = this.peek();
    if (DECLARATIONS.has(next?.text)) {
      this.replace(token.start, next.start, "");
    } else if (next?.text === "default") {
      this.take("default");
      this.editDefault(token);
    } else {
      const text = this.readExport();
      this.replace(token.start, this.previous.end, text);
    }
  }

  // A value is evaluated, for its effects and because it may be the last one of the cell. A function or a class without
  // a name would be no statement; in parentheses it is an expression that ends where the declaration does.
  editDefault(token) {
    const first = this.peek();
    if (first === undefined) throw new SyntaxError("export default what?");
    const body = this.bodyOfNameless();
    if (body === null) {
      const isNamed = ["class", "function"].includes(first.text) || this.isAsyncFunction();
      this.replace(token.start, first.start, isNamed ? "" : ";0, ");
    } else {
      this.replace(token.start, first.start, ";(");
      this.replace(body.end, body.end, ");");
    }
  }

  isAsyncFunction() {
    return this.peek()?.text === "async" && this.peek(1)?.text === "function" && !this.peek(1).beginsLine;
  }

  // Returns the `}` of a function or class without a name that comes next; null if something else does.
  bodyOfNameless() {
    let ahead = this.isAsyncFunction() ? 1 : 0;
    const keyword = this.peek(ahead)?.text;
    if (keyword !== "function" && keyword !== "class") return null;
    ahead += this.peek(ahead + 1)?.text === "*" ? 2 : 1;
    const next = this.peek(ahead);
    if (next?.type === "word" && !(keyword === "class" && next.text === "extends")) return null;
    for (let token = next; token !== undefined; token = this.tokens[(token.partner ?? token).index + 1]) {
      if (token.text === "{") return token.partner;
    }
    throw new SyntaxError("a declaration has no body");
  }

  readExport() {
    if (this.peek()?.text === "*") {
      this.take("*");
      if (this.peek()?.text === "as") this.take("as") && this.take("word", "string");
    } else {
      if (this.peek()?.text !== "{") throw new SyntaxError("export what?");
      this.at = this.peek().partner.index + 1;
      if (this.peek()?.text !== "from") {
        this.endStatement();
        return ";";
      }
    }
    this.take("from");
    return `${this.readSource()};`;
  }

  peek(ahead = 0) {
    return this.tokens[this.at + ahead];
  }

  get previous() {
    return this.tokens[this.at - 1];
  }

  // Returns the text of the next token, which must be one of these or of one of these types.
  take(...wanted) {
    const token = this.peek();
    if (token === undefined || !(wanted.includes(token.text) || wanted.includes(token.type))) {
      throw new SyntaxError(`${wanted.join(" or ")} is missing`);
    }
    this.at += 1;
    return token.text;
  }

  replace(start, end, text) {
    this.edits.push({ start, end, text });
  }
}

module.exports = { rewritten };
