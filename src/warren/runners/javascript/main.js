// Runs the cells of a JavaScript context, or with the argument `typescript` of one in TypeScript. The keeper starts it with a socket on descriptor 3 and pipes on 1 and 2.
//
// V8's own REPL mode evaluates a cell (`Runtime.evaluate` of an inspector session in this thread): it has top-level
// await and lets a later cell declare a name again. Modules are the one thing it lacks; modules.js rewrites them.
//
// A cell may be stopped at any time by SIGINT. This thread cannot see a signal while it is busy, so a second thread
// (interrupts.js) waits for it and has this thread call `interrupt`, above whatever runs. What runs is either ours
// (then the interrupt waits until it is done, so that no frame is torn), or the user's (then V8 ends it), or nothing.
"use strict";

const inspector = require("node:inspector");
const { Module } = require("node:module");
const net = require("node:net");
const path = require("node:path");
const util = require("node:util");
const v8 = require("node:v8");
const { display, resultOf } = require("./display.js");
const { errorOf, syntaxErrorOf, traceOf } = require("./errors.js");

const typescript = process.argv[2] === "typescript" ? require("./typescript.js") : null;
if (typescript !== null && !typescript.canStrip) process.exit(127); // as a shell says that there is no such program

const REPL_VALUE = ".repl_result";
const NONE = -1;
const INTERRUPTED = { name: "Interrupted", value: "The cell was interrupted.", traceback: "Interrupted: The cell was interrupted." };

const socket = new net.Socket({ fd: 3, readable: true, writable: true });
const session = new inspector.Session();
const handled = new Int32Array(new SharedArrayBuffer(4)); // counts interrupts that were handled; interrupts.js waits on it

let received = Buffer.alloc(0);
let cells = 0;
let current = null; // the cell that runs: {count, environment}
let protecting = 0; // above 0 while our own code runs that must not be ended
let interrupted = NONE; // the interrupt that came meanwhile

function protect(work, afterInterrupt = acknowledge) {
  protecting += 1;
  try {
    return work();
  } finally {
    protecting -= 1;
    if (protecting === 0 && interrupted !== NONE) {
      const number = interrupted;
      interrupted = NONE;
      if (number === Atomics.load(handled, 0)) afterInterrupt(number);
    }
  }
}

// For what the user's code calls: the interrupt then ends that code.
function protectCall(work) {
  return protect(work, endWhatRuns);
}

function endWhatRuns() {
  session.post("Runtime.terminateExecution"); // interrupts.js has `acknowledge` called when it has ended
}

function send(type, value) {
  const payload = Buffer.from(JSON.stringify(value));
  const frame = Buffer.alloc(5 + payload.length);
  frame.write(type, 0, "latin1");
  frame.writeUInt32BE(payload.length, 1);
  payload.copy(frame, 5);
  // What fits into the socket's buffer is written before this returns: results keep their place among printed text.
  protect(() => socket.write(frame));
}

function readFrames(chunk) {
  received = received.length === 0 ? chunk : Buffer.concat([received, chunk]);
  while (received.length >= 5) {
    const length = received.readUInt32BE(1);
    if (received.length < 5 + length) return;
    const payload = received.subarray(5, 5 + length);
    received = received.subarray(5 + length);
    const request = JSON.parse(payload.toString());
    // Not from within the socket's own callback, which an interrupt would end halfway.
    watching.then(() => setImmediate(run, request));
  }
}

function run(request) {
  const cell = protect(() => begin(request));
  if (cell.source === null) return;
  let promise = null;
  // Every script in REPL mode is an async function; its promise is the first that is made. It must be kept: V8 gives
  // up on a cell whose promise is collected as garbage, and Node 24 crashes then.
  const stop = v8.promiseHooks.onInit((made) => {
    stop();
    promise = made;
    cell.promise = made;
    made.then((result) => settle(cell, result[REPL_VALUE]), (error) => finish(cell, errorOf(error)));
  });
  const parameters = { expression: cell.source, replMode: true, objectGroup: "cell" };
  session.post("Runtime.evaluate", parameters, (error, response) => {
    if (promise === null) stop();
    if (response?.exceptionDetails && promise === null) finish(cell, syntaxErrorOf(response.exceptionDetails, cell));
    else if (error && promise === null) finish(cell, errorOf(error));
    session.post("Runtime.releaseObjectGroup", { objectGroup: "cell" });
  });
}

function begin(request) {
  cells += 1;
  const name = `cell_${cells}.js`;
  const cell = { count: cells, name, code: request.code, source: null, environment: [], promise: null };
  for (const [key, value] of Object.entries(request.env ?? {})) {
    cell.environment.push([key, process.env[key]]);
    process.env[key] = value;
  }
  current = cell;
  useFolder(process.cwd());
  try {
    cell.source = `${prepared(request.code)}\n//# sourceURL=${name}`;
  } catch (error) {
    finish(cell, errorOf(error));
  }
  return cell;
}

function prepared(code) {
  if (typescript !== null) code = typescript.stripped(code);
  if (/\b(?:import|export)\b/.test(code)) code = require("./modules.js").rewritten(code);
  return isObjectLiteral(code) ? `(${code}\n)` : code;
}

// As in Node's REPL, `{a: 1}` is an object and not a block.
function isObjectLiteral(code) {
  if (!/^\s*\{/.test(code) || /;\s*$/.test(code)) return false;
  try {
    new Function(`return async () => (${code}\n)`);
    return true;
  } catch {
    return false;
  }
}

// A promise as the last value is waited for: what the caller wants to see is what it becomes.
function settle(cell, value) {
  if (util.types.isPromise(value)) {
    value.then((later) => settle(cell, later), (error) => finish(cell, errorOf(error)));
    return;
  }
  let error = null;
  try {
    if (value !== undefined && cell === current) send("r", resultOf(value, true));
  } catch (reason) {
    error = errorOf(reason);
  }
  finish(cell, error);
}

function finish(cell, error) {
  if (cell === null || cell !== current) return;
  protect(() => {
    current = null;
    for (const [key, value] of cell.environment.reverse()) {
      if (value === undefined) delete process.env[key];
      else process.env[key] = value;
    }
    send("x", { execution_count: cell.count, error });
  });
}

// Called through the inspector by interrupts.js, above what runs in this thread. What runs may be Node's own code, which
// would lose what it has just read if it were ended: the interrupt is then repeated a little later.
function interrupt(number) {
  if (number !== Atomics.load(handled, 0)) return;
  const runs = protecting > 0 ? "ours" : whatRunsBelow();
  if (runs === "ours") interrupted = number;
  else if (runs === "user") endWhatRuns(); // nothing may be called after this line
  else if (runs === "nothing") acknowledge(number);
}

// Ends the cell that was interrupted, once for each interrupt: a message of interrupts.js may come late.
function acknowledge(number) {
  if (number !== Atomics.load(handled, 0)) return;
  finish(current, INTERRUPTED);
  Atomics.add(handled, 0, 1);
  Atomics.notify(handled, 0);
}

function whatRunsBelow() {
  const { stackTraceLimit, prepareStackTrace } = Error;
  Error.stackTraceLimit = 200;
  Error.prepareStackTrace = (_, frames) => frames.slice(3); // without this function, interrupt and the inspector's script
  const frames = new Error().stack;
  Error.stackTraceLimit = stackTraceLimit;
  Error.prepareStackTrace = prepareStackTrace;
  if (frames.length === 0) return "nothing";
  return frames.some(isOfUser) ? "user" : "node";
}

function isOfUser(frame) {
  const file = frame.getScriptNameOrSourceURL();
  return frame.isEval() || (Boolean(file) && !file.startsWith("node:") && !file.startsWith(__dirname));
}

let folder = null;

// Node would keep a module of its own half loaded, for good, if it were ended in the middle.
const load = Module._load;
Module._load = function (name, ...more) {
  return Module.isBuiltin(name) ? protectCall(() => load.call(this, name, ...more)) : load.call(this, name, ...more);
};

// `require` and `import()` find what a script in the current folder would.
function useFolder(directory) {
  if (directory === folder) return;
  folder = directory;
  const module = new Module(path.join(directory, "cell.js"));
  module.filename = module.id;
  module.paths = Module._nodeModulePaths(directory);
  module._compile("module.exports = [require, (name, options) => import(name, options)];", module.filename);
  const [require_, import_] = module.exports;
  module.exports = {};
  process.mainModule = require_.main = module; // `require.main === module` holds, as in a script
  import_.meta = { url: require("node:url").pathToFileURL(module.filename).href, filename: module.filename, dirname: directory };
  hide("require", require_);
  hide("module", module);
  hide("exports", module.exports);
  hide("__filename", module.filename);
  hide("__dirname", directory);
  hide("__import", import_);
}

function hide(name, value) {
  Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
}

// A stream whose write was ended halfway would never write again. One that does not block would be overtaken by frames.
function protectStream(stream) {
  stream._handle?.setBlocking?.(true);
  const write = stream.write;
  stream.write = function (...given) {
    return protectCall(() => write.apply(this, given));
  };
}

function report(error) {
  process.stderr.write(`${traceOf(error)}\n`);
}

function watchInterrupts() {
  const { Worker } = require("node:worker_threads");
  const worker = new Worker(path.join(__dirname, "interrupts.js"), {
    workerData: handled,
    env: {},
    resourceLimits: { maxOldGenerationSizeMb: 16, maxYoungGenerationSizeMb: 2, codeRangeSizeMb: 8 },
  });
  worker.on("message", acknowledge);
  worker.unref();
  return new Promise((resolve) => worker.once("message", resolve)); // it says -1 when it watches
}

process.argv.length = 1;
process.execArgv.length = 0;
process.on("uncaughtException", report);
process.on("unhandledRejection", report);
process.on("SIGINT", () => { interrupted = 0; }); // until the second thread watches: the first cell waits for it
socket.on("data", (chunk) => protect(() => readFrames(chunk)));
socket.on("end", () => process.exit(0));
socket.on("error", () => process.exit(0));
session.connect();
hide("display", (value) => {
  const result = display(value);
  protectCall(() => send("r", result));
});
protectStream(process.stdout);
protectStream(process.stderr);
hide("__interrupt", interrupt);
useFolder(process.cwd());
const watching = watchInterrupts();
send("h", { version: process.versions.node });
