// @ts-check
// What the cells of a map and the shades of a text stand for: weights or contributions, of tokens, words or sentences;
// in Compare also the difference of two heads.

import { exact, percent } from "./format.js";
import { unitNames } from "./units.js";

/** @type {Quantity} the weights of tokens */
export const PLAIN = { shade: "weights", units: "tokens", unitsOf: 0, position: -1, token: -1 };

/**
 * What the reader looks at. What a text does not have is replaced by what every text has.
 * @param {Meta} meta
 * @param {Pick<State, "text" | "layer" | "head" | "row" | "shade" | "units" | "token">} state
 * @returns {Quantity}
 */
export function quantityOf(meta, state) {
  const text = meta.texts[state.text];
  const shade = /** @type {ShadeName} */ (state.shade);
  const units = /** @type {Quantity["units"]} */ (state.units);
  const layer = text.layers.find((one) => one.key === state.layer);
  const linear = Boolean(layer?.recurrence); // its weights have either sign, and no other quantity
  const logit = shade === "logit" && text.shades.includes("logit") && !linear;
  return {
    shade: text.shades.includes(shade) && !linear ? shade : "weights",
    ...(linear ? { linear } : {}),
    units: unitNames(text).includes(units) ? units : "tokens",
    unitsOf: state.text,
    position: logit ? positionOf(text, state) : -1,
    token: logit ? state.token : -1,
  };
}

/**
 * What the Map shows: contributions to a logit are those of single queries, so that a row adds up.
 * @param {Meta} meta
 * @param {Parameters<typeof quantityOf>[1]} state
 * @returns {Quantity}
 */
export function mapQuantity(meta, state) {
  const quantity = quantityOf(meta, state);
  return quantity.shade === "logit" ? { ...quantity, units: "tokens" } : quantity;
}

/**
 * The query after which a token may follow: the chosen one, if there are contributions for it, or a telling one.
 * @param {TextMeta} text
 * @param {Pick<State, "row">} state
 */
function positionOf({ predicted }, { row }) {
  const known = row >= 0 && (predicted?.positions?.includes(row) ?? true);
  return known ? row : (predicted?.start ?? -1);
}

/**
 * Whether two layers have as many queries and keys, so that their maps can be subtracted.
 * @param {Layer} a
 * @param {Layer} b
 */
export function isSameShape(a, b) {
  return a.rows === b.rows && a.cols === b.cols;
}

/**
 * Whether numbers can be below 0, so that their colours diverge.
 * @param {Quantity} quantity
 */
export function isSigned({ shade, difference = false, linear = false }) {
  return shade === "logit" || difference || linear;
}

/**
 * Whether cells are weights, and not contributions or differences: a row then adds up to 1.
 * @param {Quantity} quantity
 */
export function areWeights({ shade, difference = false, linear = false }) {
  return shade === "weights" && !difference && !linear;
}

/**
 * A name for a quantity, to tell it from others.
 * @param {Quantity} quantity
 */
export function quantityName({ shade, units, unitsOf, position, token }) {
  return [shade, units, unitsOf, position, token].join(" ");
}

/**
 * What a number is called.
 * @param {Quantity} quantity
 */
export function quantityTitle({ shade, units }) {
  const title = {
    weights: units === "tokens" ? "Weight" : "Attention",
    values: "Value-weighted",
    logit: "Contribution",
  };
  return title[shade];
}

/**
 * What stands over a list of the strongest.
 * @param {Quantity} quantity
 * @param {boolean} looking
 */
export function rankingTitle({ shade }, looking) {
  if (shade === "values") return looking ? "Takes most from" : "Gives most to";
  if (shade === "logit") return "Contributes most";
  return looking ? "Attends most to" : "Attended to most by";
}

/**
 * A number as it is written: weights in percent, their differences in percentage points; with its sign if it may have one.
 * @param {Quantity} quantity
 * @param {number} value
 */
export function spell(quantity, value) {
  const size = Math.abs(value);
  const isShare = quantity.shade === "weights" && !quantity.linear;
  if (!isSigned(quantity)) return isShare ? percent(size) : exact(size);
  const text = isShare ? percent(size).replace("%", " points") : exact(size);
  return !value || text === "≈0" ? text : `${value > 0 ? "+" : "−"}${text}`;
}
