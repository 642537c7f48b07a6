// @ts-check
// Norms, activations and rotary positions, row by row, in double precision.

/**
 * RMSNorm of a row into another, which may be the same: x / √(mean(x²) + ε) · weight.
 * @param {Float64Array} x
 * @param {Float64Array} y
 * @param {Float32Array} weight
 * @param {number} epsilon
 */
export function rmsNorm(x, y, weight, epsilon) {
  let squares = 0;
  for (let i = 0; i < x.length; i++) squares += x[i] * x[i];
  const factor = 1 / Math.sqrt(squares / x.length + epsilon);
  for (let i = 0; i < x.length; i++) y[i] = x[i] * factor * weight[i];
}

/**
 * LayerNorm: the same of x less its mean, plus a bias.
 * @param {Float64Array} x
 * @param {Float64Array} y
 * @param {Norm} norm
 * @param {number} epsilon
 */
export function layerNorm(x, y, { weight, bias }, epsilon) {
  let sum = 0;
  for (let i = 0; i < x.length; i++) sum += x[i];
  const mean = sum / x.length;
  let squares = 0;
  for (let i = 0; i < x.length; i++) squares += (x[i] - mean) ** 2;
  const factor = 1 / Math.sqrt(squares / x.length + epsilon);
  for (let i = 0; i < x.length; i++) y[i] = (x[i] - mean) * factor * weight[i] + (bias ? bias[i] : 0);
}

/**
 * The activation of an MLP, in place: a row of `width` numbers, for "swiglu" a gate and then a value.
 * @param {ModelConfig["activation"]} name
 * @param {Float64Array} x
 * @param {number} width of what remains
 */
export function activate(name, x, width) {
  for (let i = 0; i < width; i++) {
    const u = x[i];
    if (name === "swiglu") x[i] = (u / (1 + Math.exp(-u))) * x[i + width];
    else if (name === "gelu") x[i] = 0.5 * u * (1 + errorFunction(u / Math.SQRT2));
    else x[i] = 0.5 * u * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (u + 0.044715 * u ** 3)));
  }
}

/**
 * erf, to within 2e-7 (Abramowitz and Stegun, 7.1.26).
 * @param {number} x
 */
function errorFunction(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const terms = [0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429];
  const sum = terms.reduceRight((total, term) => (total + term) * t, 0);
  return Math.sign(x) * (1 - sum * Math.exp(-x * x));
}

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
 * @param {{ cos: Float64Array, sin: Float64Array }} table
 * @param {number} position
 */
export function rotate(x, { cos, sin }, position) {
  const half = x.length / 2;
  for (let i = 0; i < half; i++) {
    const [a, b] = [x[i], x[half + i]];
    const [c, s] = [cos[position * half + i], sin[position * half + i]];
    x[i] = a * c - b * s;
    x[half + i] = b * c + a * s;
  }
}
