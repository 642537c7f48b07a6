// @ts-check
// The page's side of the arithmetic of a saved page: it sends questions through a port, and the blocks that their
// answers need. `responder.js` is the other side; `types.d.ts` lists the messages.

import { PortQuestions } from "./port_questions.js";

export class RemoteWeights extends PortQuestions {
  /**
   * @param {Port} port
   * @param {SavedData} data
   * @param {(name: string) => string} takeBlock
   */
  constructor(port, data, takeBlock) {
    super(port);
    this.takeBlock = takeBlock;
    port.addEventListener("error", ({ message }) =>
      this.fail(`The computation failed. ${message || "Reload this page."}`),
    );
    this.send({ kind: "open", ...data });
  }

  /**
   * @template {keyof Answers} Name
   * @param {Name} name
   * @param {Answers[Name][0]} question
   * @param {AbortSignal} [signal]
   * @param {(line: any) => void} [onLine]
   * @returns {Promise<Answers[Name][1]>}
   */
  async ask(name, question, signal, onLine) {
    const { answer } = await this.exchange({ kind: "ask", name, question }, signal, onLine);
    return answer;
  }

  /** @param {FromWorker} message */
  receive(message) {
    if (message.kind === "block") this.send(this.block(message.name));
    else super.receive(message);
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
}
