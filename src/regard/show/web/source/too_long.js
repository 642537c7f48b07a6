// @ts-check
// The answer to a text of more tokens than the model can read: how many it has, and how many could be read.

import { count } from "../data/format.js";

export class TooLongError extends Error {
  /** @param {{ tokens: number, most: number }} sizes */
  constructor({ tokens, most }) {
    super(`This text has ${count(tokens)} tokens; the model reads at most ${count(most)}.`);
    this.most = most;
  }
}
