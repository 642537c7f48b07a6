// @ts-check
// The transport of a page in a notebook's cell: questions go through a port to the notebook, which passes them on to
// the kernel (`host.js`, and `widget.py` in Python). It knows messages; it does not know what they ask for.

/**
 * @typedef {{ take: (message: FromKernel) => void, fail: (error: Error) => void }} Waiting
 */

/** The page's end of the port. It numbers questions and hands every message to the one who waits for it. */
export class Kernel {
  /** @param {MessagePort} port */
  constructor(port) {
    this.port = port;
    this.last = 0; // the number of the latest question
    this.gone = ""; // why there will be no more answers
    /** @type {Map<number, Waiting>} */
    this.waiting = new Map();
    /** @type {Set<(message: FromKernel) => void>} */
    this.listeners = new Set(); // to messages that answer no question
    /** @type {FromKernel[]} */
    this.early = []; // which came before there was a listener
    port.onmessage = ({ data: message }) => this.receive(message);
  }

  /** @param {FromKernel} message */
  receive(message) {
    if ("id" in message) {
      this.waiting.get(message.id)?.take(message);
      return;
    }
    if (message.kind === "gone") {
      this.gone = message.message;
      for (const { fail } of [...this.waiting.values()]) fail(new Error(this.gone));
    }
    for (const listener of this.listeners) listener(message);
    if (!this.listeners.size) this.early.push(message);
  }

  /** @param {(message: FromKernel) => void} listener called for messages that answer no question, earlier ones too */
  listen(listener) {
    this.listeners.add(listener);
    for (const message of this.early.splice(0)) listener(message);
  }

  /** @param {ToKernel} message */
  send(message) {
    this.port.postMessage(message);
  }

  /**
   * Sends a question and gives each message about it to `take`, until that calls `done`.
   * @template T
   * @param {(id: number) => ToKernel} question
   * @param {(message: FromKernel, done: (result: T) => void) => void} take
   * @param {AbortSignal} [signal]
   * @returns {Promise<T>}
   */
  exchange(question, take, signal) {
    return new Promise((resolve, reject) => {
      if (this.gone) throw new Error(this.gone);
      signal?.throwIfAborted();
      const id = ++this.last;
      const stop = () => {
        this.send({ kind: "stop", id });
        fail(signal?.reason);
      };
      const leave = () => {
        this.waiting.delete(id);
        signal?.removeEventListener("abort", stop);
      };
      const fail = (/** @type {Error} */ error) => {
        leave();
        reject(error);
      };
      const done = (/** @type {T} */ result) => {
        leave();
        resolve(result);
      };
      signal?.addEventListener("abort", stop);
      this.waiting.set(id, {
        take: (message) => {
          if (message.kind === "error") fail(new Error(message.error));
          else if (message.kind === "removed") fail(new DOMException(message.error, "AbortError"));
          else take(message, done);
        },
        fail,
      });
      this.send(question(id));
    });
  }

  /** @type {Transport["ask"]} */
  ask = (name, query, signal) => {
    const texts = Object.fromEntries(Object.entries(query).map(([key, value]) => [key, String(value)]));
    return this.exchange(
      (id) => ({ kind: "ask", id, name, query: texts }),
      (message, done) => message.kind === "answer" && done(new Response(message.content)),
      signal,
    );
  };

  /** @type {Transport["follow"]} */
  follow = (name, body, onLine, signal) => {
    /** @type {any} */
    let last = null;
    return this.exchange(
      (id) => ({ kind: "job", id, name, body }),
      (message, done) => {
        if (message.kind === "line") onLine((last = /** @type {any} */ (message.line)));
        if (message.kind === "end") done(last);
      },
      signal,
    );
  };
}

/**
 * The kernel, once the notebook has sent the port.
 * @returns {Promise<Kernel>}
 */
export function openKernel() {
  return new Promise((resolve) => {
    const take = (/** @type {MessageEvent} */ event) => {
      if (event.source !== parent || event.data !== "regard-port" || event.ports.length !== 1) return;
      removeEventListener("message", take);
      resolve(new Kernel(event.ports[0]));
    };
    addEventListener("message", take);
  });
}
