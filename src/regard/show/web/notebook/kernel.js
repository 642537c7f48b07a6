// @ts-check
// The transport of a page in a notebook's cell: questions go through a port to the notebook, which passes them on to
// the kernel (`host.js`, and `widget.py` in Python). It knows messages; it does not know what they ask for.

import { PortQuestions } from "../source/port_questions.js";

/** The page's end of the port. It hands every message to the one who waits for it. */
export class Kernel extends PortQuestions {
  /** @param {MessagePort} port */
  constructor(port) {
    super(port);
    this.gone = ""; // why there will be no more answers
    /** @type {FromKernel[]} */
    this.early = []; // messages that answer no question, which came before anybody listened
    /** @type {(message: FromKernel) => void} */
    this.tell = (message) => this.early.push(message);
  }

  /** @param {FromKernel} message */
  receive(message) {
    if ("id" in message) return super.receive(message);
    if (message.kind === "gone") {
      this.gone = message.message;
      this.fail(this.gone);
    }
    this.tell(message);
  }

  /** @param {(message: FromKernel) => void} listener called for messages that answer no question, earlier ones too */
  listen(listener) {
    this.tell = listener;
    this.early.forEach(listener);
  }

  /** @type {PortQuestions["exchange"]} */
  async exchange(...question) {
    if (this.gone) throw new Error(this.gone);
    return super.exchange(...question);
  }

  /** @type {Transport["ask"]} */
  ask = async (name, query, signal) => {
    const texts = Object.fromEntries(Object.entries(query).map(([key, value]) => [key, String(value)]));
    return new Response((await this.exchange({ kind: "ask", name, query: texts }, signal)).content);
  };

  /** @type {Transport["follow"]} */
  follow = async (name, body, onLine, signal) => {
    /** @type {any} */
    let last = null;
    await this.exchange({ kind: "job", name, body }, signal, (line) => onLine((last = line)));
    return last;
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
