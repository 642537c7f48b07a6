// @ts-check
// Numbers as a reader wants them: few digits, a real minus sign, units.

/** @param {string} text */
const minus = (text) => (/^-0\.?0*$/.test(text) ? text.slice(1) : text.replace("-", "−"));

/**
 * A weight with four digits that count.
 * @param {number} weight
 */
export function exact(weight) {
  if (weight === 0) return "0";
  return weight < 1e-4 ? "≈0" : String(Number(weight.toPrecision(4)));
}

/**
 * Any number, with so many decimals; −∞ and the like as signs.
 * @param {number | null | undefined} x
 * @param {number} [digits]
 */
export function number(x, digits = 3) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  if (x !== 0 && Math.abs(x) < 0.5 * 10 ** -digits) return "≈0";
  return minus(x.toFixed(digits));
}

/** Scores that are not shares. */
const COUNTS = ["distance", "patch_distance", "effective_length"]; // of tokens or patches
const MONITORED = ["largest_score", "largest_query_norm", "largest_key_norm"];
const AMOUNTS = [...COUNTS, ...MONITORED, "entropy", "importance"];

/**
 * Whether a score is a share of something, from 0 to 1.
 * @param {string} name
 */
export function isShare(name) {
  return !AMOUNTS.includes(name);
}

/**
 * A score by its name: shares in percent, the others with as many digits as they need.
 * @param {string} name
 * @param {number | null | undefined} x
 */
export function score(name, x) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  if (isShare(name)) return percent(x);
  if (COUNTS.includes(name)) return number(x, Math.abs(x) < 10 ? 1 : 0);
  return number(x, name === "importance" ? 3 : 2);
}

/**
 * The same in a cell: whole percent without the sign.
 * @param {string} name
 * @param {number} x
 */
export function briefScore(name, x) {
  return isShare(name) ? String(Math.round(100 * x)) : score(name, x);
}

/** @param {number} n */
export function count(n) {
  return n.toLocaleString("en-US");
}

/**
 * 1.5 MiB.
 * @param {number} n
 */
export function bytes(n) {
  const units = ["bytes", "KiB", "MiB", "GiB"];
  let power = 0;
  while (n >= 1024 && power + 1 < units.length) {
    n /= 1024;
    power++;
  }
  return `${power === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)} ${units[power]}`;
}

/**
 * 12.3 ms.
 * @param {number} seconds
 */
export function milliseconds(seconds) {
  const ms = seconds * 1000;
  return ms >= 1000 ? `${(ms / 1000).toFixed(2)} s` : `${ms >= 100 ? ms.toFixed(0) : ms.toFixed(1)} ms`;
}

/**
 * Words with a capital letter and a full stop.
 * @param {string} words
 */
export function asSentence(words) {
  return `${words[0].toUpperCase()}${words.slice(1)}`.replace(/[^.]$/, "$&.");
}

/**
 * "one head", "2 heads".
 * @param {number} n
 * @param {string} thing
 */
export function some(n, thing) {
  return n === 1 ? `one ${thing}` : `${count(n)} ${thing}s`;
}

/**
 * A number in few letters: .23, −.23, 1, 4.2, and · for what rounds to nothing.
 * @param {number} value
 * @param {number} [digits]
 * @returns {string}
 */
export function brief(value, digits = 2) {
  if (value < 0) return brief(-value, digits).replace(/^(?=[\d.])/, "−");
  if (value >= 1.05) return String(Number(value.toPrecision(Math.max(2, digits))));
  if (value >= 0.9995) return "1";
  const text = value.toFixed(digits);
  return Number(text) === 0 ? "·" : text.replace(/^0/, "");
}

/**
 * A share in a cell, in percent: 23, 23% where there is room, and · for what rounds to nothing.
 * @param {number} x
 * @param {boolean} room
 */
export function cellShare(x, room) {
  if (x < 0.005) return room && x >= 1e-4 ? percent(x) : "·";
  return room ? percent(x) : String(Math.round(100 * x));
}

/**
 * A probability in percent: 31%, 4.2%, 0.03%.
 * @param {number} p
 */
export function percent(p) {
  const x = 100 * p;
  if (x > 0 && x < 0.01) return "<0.01%";
  if (x > 99.9 && x < 100) return ">99.9%";
  const digits = x < 0.995 ? 2 : x < 9.95 || x > 99 ? 1 : 0;
  return `${Number(x.toFixed(digits))}%`;
}

/**
 * How far a run of the model is: a share, a layer, or what it does if that is all that is known.
 * @param {NonNullable<CaptureLine["progress"]>} progress
 */
export function howFar({ doing, done, of, share }) {
  if (share !== undefined) return `${Math.floor(100 * share)}%`;
  return of > 1 ? `layer ${done} of ${of}` : doing;
}
