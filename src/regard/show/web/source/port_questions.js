// @ts-check
// Questions through a port, and the messages that come back: to a worker (`remote_weights.js`) or to a notebook's kernel
// (`notebook/kernel.js`). It numbers them; it does not know what they ask for.

/**
 * @typedef {object} WaitingQuestion
 * @property {(message: any) => void} resolve
 * @property {(error: Error) => void} reject
 * @property {(line: any) => void} onLine
 */

export class PortQuestions {
  /** @param {Pick<Port, "postMessage" | "onmessage">} port */
  constructor(port) {
    this.port = port;
    this.last = 0; // the number of the latest question
    /** @type {Map<number, WaitingQuestion>} */
    this.waiting = new Map();
    port.onmessage = ({ data: message }) => this.receive(message);
  }

  /** @param {object} message */
  send(message) {
    this.port.postMessage(/** @type {any} */ (message));
  }

  /**
   * Sends a question under a number of its own; gives the message that ends it.
   * @param {object} question
   * @param {AbortSignal} [signal]
   * @param {(line: any) => void} [onLine] takes what a long answer reports on its way
   * @returns {Promise<any>}
   */
  async exchange(question, signal, onLine = () => {}) {
    signal?.throwIfAborted();
    const id = ++this.last;
    const stop = () => {
      this.send({ kind: "stop", id });
      this.waiting.get(id)?.reject(signal?.reason);
    };
    signal?.addEventListener("abort", stop);
    try {
      return await new Promise((resolve, reject) => {
        this.waiting.set(id, { resolve, reject, onLine });
        this.send({ ...question, id });
      });
    } finally {
      this.waiting.delete(id);
      signal?.removeEventListener("abort", stop);
    }
  }

  /** @param {any} message */
  receive(message) {
    const waiting = this.waiting.get(message.id);
    if (message.kind === "line") waiting?.onLine(message.line);
    else if (message.kind === "error") waiting?.reject(new Error(message.error));
    else if (message.kind === "removed") waiting?.reject(new DOMException(message.error, "AbortError"));
    else waiting?.resolve(message);
  }

  /**
   * Nothing that was asked will be answered any more.
   * @param {string} why
   */
  fail(why) {
    for (const { reject } of this.waiting.values()) reject(new Error(why));
  }
}
