// @ts-check
// The page's side of the arithmetic of a saved page: it sends questions through a port, and the blocks that their
// answers need. `responder.js` is the other side; `types.d.ts` lists the messages.

/**
 * @typedef {{
 *   resolve: (answer: any) => void,
 *   reject: (error: Error) => void,
 *   onLine: (line: any) => void,
 * }} WaitingQuestion
 */

export class RemoteWeights {
  /**
   * @param {Port} port
   * @param {OpenedData} data
   * @param {(name: string) => string} takeBlock
   */
  constructor(port, data, takeBlock) {
    this.port = port;
    this.takeBlock = takeBlock;
    this.last = 0; // the number of the latest question
    /** @type {Map<number, WaitingQuestion>} */
    this.waiting = new Map();
    port.onmessage = ({ data: message }) => this.receive(message);
    port.addEventListener("error", (event) => this.fail(event.message));
    this.send({ kind: "open", ...data });
  }

  /** @param {ToWorker} message */
  send(message) {
    this.port.postMessage(message);
  }

  /**
   * @template {keyof Answers} Name
   * @param {Name} name
   * @param {Answers[Name][0]} question
   * @param {AbortSignal} [signal]
   * @param {(line: any) => void} [onLine] takes what a long answer reports on its way
   * @returns {Promise<Answers[Name][1]>}
   */
  async ask(name, question, signal, onLine = () => {}) {
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
        this.send({ kind: "ask", id, name, question });
      });
    } finally {
      this.waiting.delete(id);
      signal?.removeEventListener("abort", stop);
    }
  }

  /** @param {FromWorker} message */
  receive(message) {
    if (message.kind === "block") this.send(this.block(message.name));
    if (message.kind === "line") this.waiting.get(message.id)?.onLine(message.line);
    if (message.kind === "answer") this.waiting.get(message.id)?.resolve(message.answer);
    if (message.kind === "error") this.waiting.get(message.id)?.reject(new Error(message.error));
  }

  /**
   * @param {string} name
   * @returns {ToWorker}
   */
  block(name) {
    try {
      return { kind: "block", name, text: this.takeBlock(name) };
    } catch (error) {
      return { kind: "block", name, error: error.message };
    }
  }

  /**
   * Nothing that was asked will be answered any more.
   * @param {string} message
   */
  fail(message) {
    for (const { reject } of this.waiting.values())
      reject(new Error(`The computation failed. ${message || "Reload this page."}`));
  }
}
