// Attention weights from q, k and lse: exp(scale · q·k + bias − lse), where the mask lets look.
// It knows one head's arrays; it does not know files, pages or colours.

export const SLICE = 8; // milliseconds at a stretch, so that the page stays quick

/** Lets the page draw and answer, then goes on; throws if nobody wants the answer any more. */
export async function breathe(signal) {
  await new Promise((go) => {
    const channel = new MessageChannel();
    channel.port1.onmessage = go;
    channel.port2.postMessage(0);
  });
  signal?.throwIfAborted();
}

/**
 * One head: `q` (T · D), `k` (S · D), `lse` (T), `scale`, `softcap` or null, the visible keys of query i as
 * pairs `ranges[2n], ranges[2n + 1]` for n from `offsets[i]` to `offsets[i + 1]`, and what is added to the
 * scores: `relative` (by key − query, T + S − 1 numbers), `dense` (T · S), or neither.
 */
export class Head {
  constructor(parts) {
    Object.assign(this, parts);
  }

  /** The score of query i and key j after scale, cap and bias, if it were visible. */
  score(i, j) {
    const { q, k, D } = this;
    const a = i * D;
    const b = j * D;
    let sum = 0;
    for (let d = 0; d < D; d++) sum += q[a + d] * k[b + d];
    sum *= this.scale;
    if (this.softcap) sum = this.softcap * Math.tanh(sum / this.softcap);
    if (this.relative) sum += this.relative[j - i + this.T - 1];
    else if (this.dense) sum += this.dense[i * this.S + j];
    return sum;
  }

  /** Calls `visit(j, weight)` for the visible keys of query i from `first` to before `last`. */
  visible(i, first, last, visit) {
    const lse = this.lse[i];
    for (let n = this.offsets[i]; n < this.offsets[i + 1]; n++) {
      const from = Math.max(first, this.ranges[2 * n]);
      const to = Math.min(last, this.ranges[2 * n + 1]);
      for (let j = from; j < to; j++) visit(j, Math.exp(this.score(i, j) - lse));
    }
  }

  row(i) {
    const out = new Float32Array(this.S);
    this.visible(i, 0, this.S, (j, weight) => (out[j] = weight));
    return out;
  }

  column(j) {
    const out = new Float32Array(this.T);
    for (let i = 0; i < this.T; i++) this.visible(i, j, j + 1, (_, weight) => (out[i] = weight));
    return out;
  }

  /** Tile (i, j) of level z, as `source.js` describes it. */
  async tile(z, i, j, { without = null, signal } = {}) {
    const size = 2 ** z;
    const span = 256 * size;
    const [top, left] = [i * span, j * span];
    const [bottom, right] = [Math.min(this.T, top + span), Math.min(this.S, left + span)];
    const rows = Math.ceil((bottom - top) / size);
    const cols = Math.ceil((right - left) / size);
    const mass = new Float32Array(rows * cols);
    const max = new Float32Array(rows * cols).fill(-1);
    let started = performance.now();
    let at = 0;
    const visit = (key, weight) => {
      const cell = at + ((key - left) >> z);
      const counted = key === without ? 0 : weight;
      mass[cell] += counted;
      if (counted > max[cell]) max[cell] = counted;
    };
    for (let query = top; query < bottom; query++) {
      at = ((query - top) >> z) * cols;
      this.visible(query, left, right, visit);
      if (performance.now() - started > SLICE) {
        await breathe(signal);
        started = performance.now();
      }
    }
    for (let y = 0; y < rows; y++) {
      const queries = Math.min(size, bottom - top - y * size);
      for (let x = 0; x < cols; x++) mass[y * cols + x] /= queries;
    }
    return { mass, max, rows, cols };
  }
}
