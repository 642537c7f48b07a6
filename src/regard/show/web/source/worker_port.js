// @ts-check
// Where a saved page computes: in a worker, so that the page itself never stutters. Where there can be no worker,
// as in viewers that forbid them, the same code answers through a channel within the page.

import { unpackText } from "./arithmetic/packed.js";
import { Responder } from "./arithmetic/responder.js";
import { SavedWeights } from "./arithmetic/saved_weights.js";

/**
 * A port whose other end answers questions.
 * @returns {Promise<Port>}
 */
export async function openWorkerPort() {
  try {
    return await startWorker();
  } catch {
    const { port1, port2 } = new MessageChannel();
    new Responder(port2, SavedWeights);
    return port1;
  }
}

/** A worker that has said that it is ready. Its script stands in the file as a block. */
async function startWorker() {
  const script = document.getElementById("regard-worker");
  if (!script) throw new Error("The file holds no worker.");
  const code = await unpackText(script.textContent.trim());
  const address = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
  try {
    const worker = new Worker(address);
    await new Promise((ready, failed) => {
      worker.onmessage = ready;
      worker.addEventListener("error", failed); // as where a policy forbids it
    });
    return worker;
  } finally {
    URL.revokeObjectURL(address);
  }
}
