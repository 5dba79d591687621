// The second thread of a JavaScript context: waits for SIGINT and has the main thread act on it. See main.js.
//
// `breakOnSigint` ends the innermost script below when the process gets SIGINT. Node's handler of the signal stays in
// place as long as one such script runs; without it a signal ends the process. So there are several, each in a loop of
// the one around it: every further one bridges the time in which the one inside it begins again.
"use strict";

const { Session } = require("node:inspector");
const vm = require("node:vm");
const { parentPort, workerData: handled } = require("node:worker_threads");

const WATCHING = -1;
const BRIDGES = 3;
const BREAK = { breakOnSigint: true };
const wait = new vm.Script("warrenWait()");
const bridge = new vm.Script("warrenBridge()");
const never = new Int32Array(new SharedArrayBuffer(4));
let pending = false;
let depth = 0;

globalThis.warrenWait = () => Atomics.wait(never, 0, 0);
globalThis.warrenBridge = () => {
  const here = depth + 1;
  if (here < BRIDGES) forever(bridge, () => { depth = here; });
  parentPort.postMessage(WATCHING);
  forever(wait, interruptIfPending);
};

function forever(script, prepare) {
  for (;;) {
    prepare();
    try {
      script.runInThisContext(BREAK);
    } catch {
      pending = true;
    }
  }
}

function interruptIfPending() {
  if (!pending) return;
  pending = false;
  interruptMain();
}

// The message ends a cell that waits for something; while code runs, the main thread takes no message.
function interruptMain() {
  const before = Atomics.load(handled, 0);
  for (let tries = 0; tries < 20; tries += 1) {
    if (tries % 2 === 0) evaluate(`__interrupt(${before})`);
    else parentPort.postMessage(before);
    if (Atomics.wait(handled, 0, before, 20 + 20 * tries) !== "timed-out") return;
  }
}

function evaluate(expression) {
  const session = new Session();
  session.connectToMainThread();
  session.post("Runtime.evaluate", { expression, silent: true });
  session.disconnect(); // a session that stays makes Node print a line when it exits
}

forever(bridge, () => { depth = 0; });
