// @ts-check
// The scores, labels and sentences of heads, layer by layer as they come. It knows a source, not how rows are shown.

/** Asks for the rows of layers, and remembers them. */
export class HeadRows {
  /** @param {Pick<Source, "layerHeads">} source */
  constructor(source) {
    this.source = source;
    /** @type {Map<string, HeadScores[]>} */
    this.known = new Map(); // by text and layer
  }

  /**
   * The row of a head, if it has come.
   * @param {number} text
   * @param {string} layer
   * @param {number} head
   */
  row(text, layer, head) {
    return this.known.get(`${text} ${layer}`)?.find((row) => row.head === head);
  }

  /**
   * The rows of a layer.
   * @param {number} text
   * @param {string} layer
   */
  async layer(text, layer) {
    const rows = await this.source.layerHeads(text, layer);
    this.known.set(`${text} ${layer}`, rows);
    return rows;
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
