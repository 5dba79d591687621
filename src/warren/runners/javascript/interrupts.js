// The second thread of a JavaScript context: waits for SIGINT and has the main thread act on it. See main.js.
//
// `breakOnSigint` ends the wait below when the process gets SIGINT. Node's handler of the signal stays in place as long
// as one script with `breakOnSigint` runs; the outer one bridges the time between two waits.
"use strict";

const { Session } = require("node:inspector");
const vm = require("node:vm");
const { parentPort, workerData: handled } = require("node:worker_threads");

const WATCHING = -1;
const BREAK = { breakOnSigint: true };
const wait = new vm.Script("warrenWait()");
const serve = new vm.Script("warrenServe()");
const never = new Int32Array(new SharedArrayBuffer(4));
let pending = false;

globalThis.warrenWait = () => Atomics.wait(never, 0, 0);
globalThis.warrenServe = () => {
  parentPort.postMessage(WATCHING);
  for (;;) {
    if (pending) {
      pending = false;
      interruptMain();
    }
    try {
      wait.runInThisContext(BREAK);
    } catch {
      pending = true;
    }
  }
};

function interruptMain() {
  const before = Atomics.load(handled, 0);
  const session = new Session();
  session.connectToMainThread();
  session.post("Runtime.evaluate", { expression: "__interrupt()", silent: true });
  session.disconnect(); // a session that stays makes Node print a line when it exits
  for (let tries = 0; tries < 20; tries += 1) {
    if (Atomics.wait(handled, 0, before, 20 + 20 * tries) !== "timed-out") return;
    parentPort.postMessage(before);
  }
}

for (;;) {
  try {
    serve.runInThisContext(BREAK);
  } catch {
    pending = true;
  }
}
