// @ts-check
// The computing side of a saved page: it answers questions that come through a port, in a worker or on the page.
// `remote_weights.js` is the other side; `types.d.ts` lists the messages.

import { applySettings } from "../../data/settings.js";

const SLICE = 8; // milliseconds of computing before other messages are read

/** Says through its port that it is ready, and then answers questions in any order. */
export class Responder {
  /**
   * @param {Port} port
   * @param {new (data: SavedData, blockText: (name: string) => Promise<string>) => object} Weights what computes
   *   the answers: a method for each question
   */
  constructor(port, Weights) {
    this.port = port;
    this.Weights = Weights;
    /** @type {object | null} */
    this.weights = null; // until the page has said what there is
    /** @type {Map<number, { stopped: boolean }>} */
    this.running = new Map(); // by the question's number
    /** @type {Map<string, { resolve: (text: string) => void, reject: (error: Error) => void }>} */
    this.blocks = new Map(); // that the page was asked for, by name
    port.onmessage = ({ data: message }) => this.receive(message);
    this.send({ kind: "ready" });
  }

  /**
   * @param {FromWorker} message
   * @param {Transferable[]} [transfer]
   */
  send(message, transfer = []) {
    this.port.postMessage(message, transfer);
  }

  /** @param {ToWorker} message */
  receive(message) {
    if (message.kind === "open") this.open(message);
    if (message.kind === "ask") this.answer(message);
    if (message.kind === "block") this.take(message);
    const task = message.kind === "stop" && this.running.get(message.id);
    if (task) task.stopped = true;
  }

  /** @param {SavedData} data */
  open(data) {
    applySettings(data.meta);
    this.weights = new this.Weights(data, (name) => this.blockText(name));
  }

  /** @param {Extract<ToWorker, { kind: "ask" }>} message */
  async answer({ id, name, question }) {
    const task = { stopped: false };
    this.running.set(id, task);
    try {
      const tell = (/** @type {object} */ line) => !task.stopped && this.send({ kind: "line", id, line });
      const answer = await /** @type {any} */ (this.weights)[name](question, pauseOf(task), tell);
      if (!task.stopped) this.send({ kind: "answer", id, answer }, buffersOf(answer));
    } catch (error) {
      if (!task.stopped) this.send({ kind: "error", id, error: error.message });
    } finally {
      this.running.delete(id);
    }
  }

  /**
   * Asks the page for the text of a block.
   * @param {string} name
   * @returns {Promise<string>}
   */
  blockText(name) {
    return new Promise((resolve, reject) => {
      this.blocks.set(name, { resolve, reject });
      this.send({ kind: "block", name });
    });
  }

  /** @param {Extract<ToWorker, { kind: "block" }>} message */
  take({ name, text, error }) {
    const waiting = this.blocks.get(name);
    this.blocks.delete(name);
    if (text === undefined) waiting?.reject(new Error(error));
    else waiting?.resolve(text);
  }
}

/**
 * What a long computation awaits again and again: every few milliseconds it lets messages in, and it throws once
 * the answer is no longer needed.
 * @param {{ stopped: boolean }} task
 * @returns {Pause}
 */
export function pauseOf(task) {
  let started = performance.now();
  return async () => {
    if (performance.now() - started < SLICE) return;
    await nextTask();
    if (task.stopped) throw new Error("This answer is no longer needed.");
    started = performance.now();
  };
}

/** A promise that is kept after the messages that have come so far; a timer would wait for longer. */
function nextTask() {
  return new Promise((/** @type {(value?: undefined) => void} */ resolve) => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => {
      channel.port1.close();
      resolve();
    };
    channel.port2.postMessage(0);
  });
}

/**
 * The buffers of an answer's arrays, which are moved instead of copied: an answer is always made for its question.
 * @param {object | null} answer
 */
function buffersOf(answer) {
  const arrays = ArrayBuffer.isView(answer)
    ? [answer]
    : Object.values(answer ?? {}).filter(ArrayBuffer.isView);
  return arrays.map(({ buffer }) => buffer);
}
