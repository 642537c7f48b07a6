// @ts-check
// Rotary positions: channels i and i + D/2 of a head are rotated by an angle that grows with the position.

/**
 * The angles' cosines and sines at `count` positions, each (count · D/2).
 * @param {ModelConfig} config
 * @param {number} count
 */
export function rotaryTable({ head_dim: D, rotary_base: base, rotary_scaling: scaling }, count) {
  const half = D / 2;
  const frequencies = Array.from({ length: half }, (_, i) => scaled(base ** ((-2 * i) / D), scaling));
  const [cos, sin] = [new Float64Array(count * half), new Float64Array(count * half)];
  for (let position = 0; position < count; position++) {
    for (let i = 0; i < half; i++) {
      cos[position * half + i] = Math.cos(position * frequencies[i]);
      sin[position * half + i] = Math.sin(position * frequencies[i]);
    }
  }
  return { cos, sin };
}

/**
 * A frequency as Llama 3.1 scales it: low ones are divided by a factor, high ones are unchanged.
 * @param {number} frequency in radians per position
 * @param {ModelConfig["rotary_scaling"]} scaling
 */
function scaled(frequency, scaling) {
  if (!scaling) return frequency;
  const rotations = (scaling.original_length * frequency) / (2 * Math.PI);
  const share = Math.min(1, Math.max(0, (rotations - scaling.low) / (scaling.high - scaling.low)));
  return frequency * (share + (1 - share) / scaling.factor);
}

/**
 * Rotates a query or key of one head in place.
 * @param {Float64Array} x
 * @param {number} at where it begins
 * @param {number} D
 * @param {{ cos: Float64Array, sin: Float64Array }} table
 * @param {number} position
 */
export function rotate(x, at, D, { cos, sin }, position) {
  const half = D / 2;
  for (let i = 0; i < half; i++) {
    const [a, b] = [x[at + i], x[at + half + i]];
    const [c, s] = [cos[position * half + i], sin[position * half + i]];
    x[at + i] = a * c - b * s;
    x[at + half + i] = b * c + a * s;
  }
}
