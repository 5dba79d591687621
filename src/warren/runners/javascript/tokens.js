// Splits JavaScript into tokens, so that modules.js finds `import` and `export` and never takes a text for code.
//
// Only one question needs more than the letters at hand: whether `/` divides or opens a regular expression. The token
// before it answers that. After `)` it depends on what stands before the bracket, as in `if (a) /b/.test(c)`; after `}`
// on whether that ends an object, which can be divided, or a block, which cannot. So every open bracket has a frame
// that says what kind it is and which token stands before it.
"use strict";

const SPACE = /(?:\s|\/\*[^]*?\*\/|\/\/.*|<!--.*)+/y;
const WORD = /(?:[\w$#]|[^\x00-\x7F\s]|\\u(?:\{[0-9a-fA-F]+\}|[0-9a-fA-F]{4}))+/y;
const STRING = /"(?:[^"\\\r\n]|\\(?:\r\n|[^]))*"|'(?:[^'\\\r\n]|\\(?:\r\n|[^]))*'/y;
const TEMPLATE = /[`}](?:[^`\\$]|\\[^]|\$(?!\{))*(?:`|\$\{)/y; // from a backtick or a `}` to the next `${` or the end
const REGEX = /\/(?:[^/\\[\r\n]|\\.|\[(?:[^\]\\\r\n]|\\.)*\])+\/[\w$]*/y;
const SIGN = /\.\.\.|\?\.(?!\d)|\?\?|=>|\+\+|--|[^]/y;

const BEFORE_VALUE = new Set(
  "await case default delete do else extends in instanceof new of return throw typeof void yield".split(" "),
);
const BEFORE_CONDITION = new Set(["if", "for", "while", "with"]);
const AFTER_OPERAND = new Set(["]", "++", "--"]);
const OPENED_BY = { ")": "(", "]": "[", "}": "{" };

class Tokenizer {
  constructor(code) {
    this.code = code;
    this.at = code.startsWith("#!") ? code.search(/[\r\n]|$/) : 0;
    this.tokens = [];
    this.frame = { kind: "block", opener: null, before: undefined, questions: 0, inClass: false, outer: null };
    this.beginsLine = true;
  }

  readAll() {
    while (this.skipSpace()) this.readToken();
    if (this.frame.outer !== null) throw new SyntaxError("a bracket is not closed");
    return this.tokens;
  }

  skipSpace() {
    const space = this.match(SPACE);
    if (/[\n\r\u2028\u2029]/.test(space)) this.beginsLine = true;
    this.at += space.length;
    return this.at < this.code.length;
  }

  match(pattern) {
    pattern.lastIndex = this.at;
    return pattern.exec(this.code)?.[0] ?? "";
  }

  readToken() {
    const letter = this.code[this.at];
    if (letter === "`") this.readTemplate();
    else if (letter === '"' || letter === "'") this.push("string", this.match(STRING));
    else if (letter === "/" && this.expectsValue()) this.push("regex", this.match(REGEX));
    else if ("([{".includes(letter)) this.open(letter);
    else if (letter in OPENED_BY) this.close(letter);
    else if (this.match(WORD)) this.readWord();
    else this.readSign();
  }

  push(type, text) {
    if (text === "") throw new SyntaxError(`a ${type} does not end`);
    const { at: start, beginsLine, frame } = this;
    const index = this.tokens.length;
    const token = { type, text, start, end: start + text.length, index, beginsLine, frame, partner: null, closed: null };
    this.tokens.push(token);
    this.at = token.end;
    this.beginsLine = false;
    return token;
  }

  open(letter) {
    const kind = letter === "{" ? this.kindOfBraces() : letter;
    if (kind === "class" || this.last?.text === "class") this.frame.inClass = false;
    this.enter(kind, this.last, this.push("sign", letter));
  }

  enter(kind, before, opener) {
    this.frame = { kind, opener, before, questions: 0, inClass: false, outer: this.frame };
  }

  close(letter) {
    const { frame } = this;
    if (frame.opener?.text.at(-1) !== OPENED_BY[letter]) throw new SyntaxError(`${letter} closes nothing`);
    this.frame = frame.outer;
    const token = frame.kind === "template" ? this.readTemplate() : this.push("sign", letter);
    token.closed = frame;
    frame.opener.partner = token;
  }

  readTemplate() {
    const before = this.last;
    const token = this.push("template", this.match(TEMPLATE));
    if (token.text.endsWith("${")) this.enter("template", before, token);
    return token;
  }

  readWord() {
    const text = this.match(WORD);
    if (text === "class" && !isMember(this.last)) this.frame.inClass = true;
    this.push("word", text);
  }

  readSign() {
    const token = this.push("sign", this.match(SIGN));
    const { frame } = this;
    if (token.text === "?") frame.questions += 1;
    token.isChoice = token.text === ":" && frame.questions > 0;
    if (token.isChoice) frame.questions -= 1;
    if (token.text === ";") frame.questions = 0;
    if (":,=;".includes(token.text)) frame.inClass = false;
  }

  get last() {
    return this.tokens.at(-1);
  }

  // Whether a value may come next, and not an operator.
  expectsValue() {
    const { last } = this;
    if (last === undefined) return true;
    if (last.type === "word") return this.isKeyword(last) && BEFORE_VALUE.has(last.text);
    if (last.type !== "sign") return last.text.endsWith("${");
    if (last.text === ")") return this.isCondition(last.closed.before);
    if (last.text === "}") return last.closed.kind !== "object";
    return !AFTER_OPERAND.has(last.text);
  }

  isCondition(before) {
    if (before?.text === "await") return this.tokens[before.index - 1]?.text === "for";
    return before !== undefined && this.isKeyword(before) && BEFORE_CONDITION.has(before.text);
  }

  isKeyword(token) {
    return token.type === "word" && !isMember(this.tokens[token.index - 1]);
  }

  kindOfBraces() {
    const { last, frame } = this;
    if (frame.inClass) return "class";
    if (last === undefined) return "block";
    if (last.type === "word") return this.expectsValue() && !/^(?:do|else)$/.test(last.text) ? "object" : "block";
    if (last.type !== "sign") return last.text.endsWith("${") ? "object" : "block";
    if (last.text === ":") return last.isChoice || frame.kind === "object" ? "object" : "block";
    return /^(?:[;{})\]]|=>)$/.test(last.text) ? "block" : "object";
  }
}

// Whether a word after this token is the name of a property.
function isMember(before) {
  return before?.text === "." || before?.text === "?.";
}

// Returns the tokens of `code`: `type` (word, string, template, regex or sign), `text`, `start`, `end`, `index`,
// `beginsLine`, `frame` (of the bracket around it, whose `outer` is null at the top), and, of an opening bracket, in
// `partner` the closing one. Throws an error if this cannot be JavaScript.
function tokensOf(code) {
  return new Tokenizer(code).readAll();
}

module.exports = { isMember, tokensOf };
