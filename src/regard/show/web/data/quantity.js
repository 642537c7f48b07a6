// @ts-check
// What the cells of a map and the shades of a text stand for: weights or contributions, of tokens, words or
// sentences, of one text or the difference of two.

import { exact, percent } from "./format.js";
import { unitNames } from "./units.js";

/** @type {Quantity} the weights of tokens */
export const PLAIN = { shade: "weights", units: "tokens", unitsOf: 0, against: -1, position: -1, token: -1 };

/**
 * What the reader looks at. What a text does not have is replaced by what every text has.
 * @param {Meta} meta
 * @param {Pick<State, "text" | "layer" | "head" | "row" | "shade" | "units" | "against" | "token">} state
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
    against: comparable(meta, state).includes(state.against) ? state.against : -1,
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
 * The texts from whose maps this one's can be subtracted: those of the same shape, with contributions to the same
 * token if it is those that are shown.
 * @param {Meta} meta
 * @param {Pick<State, "text" | "layer" | "head" | "row" | "shade" | "token">} state
 */
export function comparable(meta, state) {
  const { text, layer: key, head } = state;
  const layerIn = (/** @type {number} */ n) => meta.texts[n].layers.find((one) => one.key === key);
  const own = layerIn(text);
  return [...meta.texts.keys()].filter((n) => {
    const other = layerIn(n);
    if (n === text || meta.texts[n].removed || !other || !own) return false;
    return isSameShape(own, other) && other.heads.includes(head) && hasContributions(meta, state, n);
  });
}

/**
 * Whether another text has contributions to the token that they are shown of; a file holds those to few tokens.
 * @param {Meta} meta
 * @param {Pick<State, "text" | "row" | "shade" | "token">} state
 * @param {number} n
 */
function hasContributions(meta, state, n) {
  const [{ shades, predicted }, other] = [meta.texts[state.text], meta.texts[n]];
  if (!shades.includes(/** @type {ShadeName} */ (state.shade))) return true; // weights are shown in its place
  if (!other.shades.includes(/** @type {ShadeName} */ (state.shade))) return false;
  if (state.shade !== "logit") return true;
  const { positions, tokens } = other.predicted ?? {};
  const token = state.token >= 0 ? state.token : predicted?.tokens?.[0];
  return (
    (positions?.includes(positionOf(meta.texts[state.text], state)) ?? true) &&
    (token === undefined || (tokens?.includes(token) ?? true))
  );
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
export function isSigned({ shade, against, linear = false }) {
  return shade === "logit" || against >= 0 || linear;
}

/**
 * Whether cells are weights, and not contributions or differences: a row then adds up to 1.
 * @param {Quantity} quantity
 */
export function areWeights({ shade, against, linear = false }) {
  return shade === "weights" && against < 0 && !linear;
}

/**
 * A name for a quantity, to tell it from others.
 * @param {Quantity} quantity
 */
export function quantityName({ shade, units, unitsOf, against, position, token }) {
  return [shade, units, unitsOf, against, position, token].join(" ");
}

/**
 * What a number is called.
 * @param {Quantity} quantity
 */
export function quantityTitle({ shade, units, against }) {
  const title = {
    weights: units === "tokens" ? "Weight" : "Attention",
    values: "Value-weighted",
    logit: "Contribution",
  };
  return against < 0 ? title[shade] : `${title[shade]}: difference`;
}

/**
 * What stands over a list of the strongest.
 * @param {Quantity} quantity
 * @param {boolean} looking
 */
export function rankingTitle({ shade, against }, looking) {
  if (against >= 0) return looking ? "Differs most with" : "Differs most for";
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
