// @ts-check
// What there is to read beside the map, as names and values: of a cell, of a row, of a layer, of the file.

import { exact } from "../common/format.js";
import { maskWords } from "../common/layers.js";
import { areWeights, PLAIN, spell } from "../common/quantity.js";
import { UNIT } from "../common/units.js";

/**
 * @typedef {object} CellFacts
 * @property {string} number
 * @property {number | null} weight the same as a number, if there is one
 * @property {Fact[]} facts
 * @property {string} note
 */

/**
 * What is to be read of a cell; `named(axis, index)` gives a token with its number.
 * @param {CellWeights | null} cell
 * @param {Pick<Layer, "rows" | "cols" | "mask">} layer
 * @param {(axis: Axis, index: number) => string} named
 * @param {Quantity} [quantity]
 * @returns {CellFacts}
 */
export function cellFacts(cell, layer, named, quantity = PLAIN) {
  if (!cell) {
    const note = "Point at a cell, or select one with the arrow keys.";
    return { number: "–", weight: null, facts: [], note };
  }
  const { row, col, size, mass, max } = cell;
  const hidden = max < 0;
  const [number, weight] = hidden ? ["hidden", null] : [spell(quantity, mass), mass];
  const isWeight = areWeights(quantity);
  const masked = `The mask (${layer.mask}) hides ${size === 1 ? "this key from this query" : "these keys from these queries"}.`;
  if (size === 1) {
    /** @type {Fact[]} */
    const facts = [
      ["query", named("queries", row)],
      ["key", named("keys", col)],
    ];
    const pooled = quantity.units !== "tokens" && !hidden;
    return { number, weight, facts, note: hidden ? masked : pooled ? pooling(quantity.units) : "" };
  }
  /**
   * @param {number} first
   * @param {number} all
   */
  const range = (first, all) => `${first}–${Math.min(first + size, all) - 1}`;
  return {
    number,
    weight,
    facts: [
      ["queries", range(row, layer.rows)],
      ["keys", range(col, layer.cols)],
      ...(isWeight ? [/** @type {Fact} */ (["max", hidden ? "–" : exact(max)])] : []),
    ],
    note: hidden
      ? masked
      : `${isWeight ? "Attention mass: the weights summed" : "Summed"} over these keys, averaged over these queries.`,
  };
}

/**
 * How the numbers of tokens become those of units.
 * @param {Quantity["units"]} units
 */
function pooling(units) {
  const unit = UNIT[units];
  return `Summed over the tokens of the key’s ${unit}, averaged over those of the query’s ${unit}.`;
}

/**
 * The keys with the largest numbers of a row, whatever their signs, largest first; those without any are left out.
 * @param {Float32Array} weights
 * @param {number} most
 */
export function strongestKeys(weights, most) {
  const size = weights.map(Math.abs);
  const order = [...size.keys()].sort((a, b) => size[b] - size[a]).slice(0, most);
  return order.filter((key) => size[key] > 0);
}

/**
 * The numbers of a layer.
 * @param {Layer} layer
 * @returns {Fact[]}
 */
export function layerFacts(layer) {
  /** @type {Fact[]} */
  const facts = [
    ["module", layer.name || "–"],
    ["mask", maskWords(layer)],
    ...(layer.bias ? [/** @type {Fact} */ (["position bias", layer.bias])] : []),
    ["score scale", exact(layer.scale)],
    ["queries × keys", [layer.rows, layer.cols].map((n) => n.toLocaleString("en")).join(" × ")],
    ["heads", layer.heads.length + (layer.group > 1 ? `, on ${layer.kv_heads} key/value heads` : "")],
    ["head width", String(layer.width)],
  ];
  if (layer.recurrence) facts.push(["recurrence", layer.recurrence]);
  if (layer.softcap) facts.push(["soft cap", String(layer.softcap)]);
  if (layer.sinks) facts.push(["sink logit", "one learned logit for each head"]);
  return facts;
}

/**
 * By how much a saved page's weights are off, rounded up to one digit.
 * @param {NonNullable<Meta["precision"]>} precision
 */
export function precisionNote({ relative, rows }) {
  const percent = Math.max(100 * relative, 1e-4);
  const digit = 10 ** Math.floor(Math.log10(percent));
  const off = `${Number((Math.ceil(percent / digit) * digit).toPrecision(1))}%`;
  return (
    `This file stores rounded queries and keys. Its weights are within ${off} of the library's, ` +
    `measured on up to ${rows} queries of every head.`
  );
}
