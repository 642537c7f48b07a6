// The page's end of a notebook's port: questions, jobs, stopping, and a kernel that is gone.

import assert from "node:assert/strict";
import test from "node:test";

import { Kernel } from "../../src/regard/show/web/notebook/kernel.js";

/** A kernel, what the page sent, and a function that answers. */
function open() {
  const port = { sent: [], postMessage: (message) => port.sent.push(message), onmessage: null };
  const kernel = new Kernel(port);
  return { kernel, sent: port.sent, tell: (message) => port.onmessage({ data: message }) };
}

test("answers come to their questions, in any order", async () => {
  const { kernel, sent, tell } = open();
  const [first, second] = [kernel.ask("row", { row: 3 }), kernel.ask("meta", {})];
  assert.deepEqual(sent[0], { kind: "ask", id: 1, name: "row", query: { row: "3" } });
  tell({ kind: "answer", id: 2, content: new TextEncoder().encode('{"model":"m"}').buffer });
  tell({ kind: "answer", id: 1, content: new Float32Array([1, 2]).buffer });
  assert.deepEqual(await (await second).json(), { model: "m" });
  assert.deepEqual(new Float32Array(await (await first).arrayBuffer()), new Float32Array([1, 2]));
});

test("a job gives its lines, and the last one in the end", async () => {
  const { kernel, tell } = open();
  const lines = [];
  const job = kernel.follow("capture", { text: "a" }, (line) => lines.push(line));
  tell({ kind: "line", id: 1, line: { progress: 1 } });
  tell({ kind: "line", id: 1, line: { text: 4 } });
  tell({ kind: "end", id: 1 });
  assert.deepEqual(await job, { text: 4 });
  assert.equal(lines.length, 2);
});

test("an error is the kernel's sentence", async () => {
  const { kernel, tell } = open();
  const question = kernel.ask("row", {});
  tell({ kind: "error", id: 1, error: "row: expected a number" });
  await assert.rejects(question, /row: expected a number/);
});

test("a question about a removed text ends like one that was stopped", async () => {
  const { kernel, tell } = open();
  const question = kernel.ask("row", {});
  tell({ kind: "removed", id: 1, error: "text: number 1 was removed" });
  await assert.rejects(question, { name: "AbortError" });
});

test("a question that is stopped says so to the kernel, and takes no answer", async () => {
  const { kernel, sent, tell } = open();
  const stop = new AbortController();
  const question = kernel.ask("heads", {}, stop.signal);
  stop.abort();
  await assert.rejects(question, { name: "AbortError" });
  assert.deepEqual(sent.at(-1), { kind: "stop", id: 1 });
  tell({ kind: "answer", id: 1, content: new ArrayBuffer(0) });
  assert.equal(kernel.waiting.size, 0);
});

test("a kernel that is gone fails what waits and what comes after", async () => {
  const { kernel, tell } = open();
  const question = kernel.ask("heads", {});
  tell({ kind: "gone", message: "The kernel was restarted." });
  await assert.rejects(question, /was restarted/);
  await assert.rejects(kernel.ask("meta", {}), /was restarted/);
  const told = [];
  kernel.listen((message) => told.push(message.kind));
  assert.deepEqual(told, ["gone"]); // also to who listens later
});
