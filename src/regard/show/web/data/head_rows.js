// @ts-check
// The scores, labels and sentences of heads, layer by layer as they come. It knows a source, not how rows are shown.

/** Asks for the rows of a layer once, and remembers them. */
export class HeadRows {
  /** @param {Pick<Source, "layerHeads">} source */
  constructor(source) {
    this.source = source;
    /** @type {Map<string, HeadScores[]>} */
    this.known = new Map(); // by text and layer
    /** @type {Map<string, Promise<HeadScores[]>>} */
    this.asked = new Map();
  }

  /**
   * The row of a head, if it has come.
   * @param {number} text
   * @param {string} layer
   * @param {number} head
   * @returns {HeadScores | undefined}
   */
  row(text, layer, head) {
    return this.known.get(`${text} ${layer}`)?.find((row) => row.head === head);
  }

  /**
   * The rows of a layer; an answer that failed is asked for again.
   * @param {number} text
   * @param {string} layer
   * @returns {Promise<HeadScores[]>}
   */
  layer(text, layer) {
    const name = `${text} ${layer}`;
    const asked = this.asked.get(name) ?? this.ask(name, text, layer);
    this.asked.set(name, asked);
    return asked;
  }

  /**
   * @param {string} name
   * @param {number} text
   * @param {string} layer
   */
  async ask(name, text, layer) {
    try {
      const rows = await this.source.layerHeads(text, layer);
      this.known.set(name, rows);
      return rows;
    } catch (error) {
      this.asked.delete(name);
      throw error;
    }
  }

  /**
   * The rows that have come of some layers, in their order.
   * @param {number} text
   * @param {Pick<Layer, "key">[]} layers
   */
  all(text, layers) {
    return layers.flatMap(({ key }) => this.known.get(`${text} ${key}`) ?? []);
  }
}
