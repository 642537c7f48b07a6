// @ts-check
// What the meta says of layers and texts, in words: names, doubts, absences; and which head is beside another.

import { clamp } from "./arrays.js";
import { asSentence } from "./format.js";

/**
 * What the meta says of a layer as it ran on a text.
 * @param {Meta} meta
 * @param {number} text
 * @param {string} key
 */
export function layerOf(meta, text, key) {
  const layers = meta.texts[text].layers;
  return layers.find((layer) => layer.key === key) ?? layers[0];
}

/**
 * A layer's mask in a word or two: its window, or the first of its rules.
 * @param {Pick<Layer, "mask" | "window">} layer
 */
export function maskName({ mask, window }) {
  if (mask === "full") return "no mask";
  return window ? `window ${window}` : (mask.match(/^\w+/)?.[0] ?? mask);
}

/**
 * A layer's mask as it is read beside others of its facts.
 * @param {Pick<Layer, "mask">} layer
 */
export function maskWords({ mask }) {
  return mask === "full" ? "none: every query sees every key" : mask;
}

/**
 * What a layer is called in a list: its key, with what sets it apart.
 * @param {Layer} layer
 */
export function layerName(layer) {
  const marks = [];
  if (layer.window) marks.push(`window ${layer.window}`);
  if (!layer.evidence.certified) marks.push("not certified");
  else if (layer.evidence.unplaced) marks.push("no tokens");
  return marks.length ? `${layer.key} (${marks.join(", ")})` : layer.key;
}

/**
 * What is to be known of those among some layers that are not certified; "" if all are.
 * @param {Layer[]} layers
 */
export function doubts(layers) {
  const doubtful = layers.filter((one) => !one.evidence.certified);
  if (!doubtful.length) return "";
  const named = doubtful.map((one) => one.key).join(", ");
  const why = asSentence(doubtful[0].evidence.text.replace(/^not certified: /, ""));
  return (
    `Layer${doubtful.length > 1 ? "s" : ""} ${named}: not certified, so these may not be the weights that ` +
    `the model used. ${why}`
  );
}

/**
 * The attention that a capture does not show, by the classes of its modules; "" if there is none.
 * @param {TextMeta["missing"] | undefined} missing
 */
export function absences(missing) {
  if (!missing?.length) return "";
  const [modules, are] = missing.length > 1 ? ["modules that mix", "are"] : ["module that mixes", "is"];
  return `${missing.length} ${modules} tokens could not be captured and ${are} not shown: ${byKind(missing)}.`;
}

/**
 * What mixes tokens without being attention, by the classes of its modules; "" if there is nothing.
 * @param {TextMeta["others"] | undefined} others
 */
export function otherMixers(others) {
  if (!others?.length) return "";
  const [modules, have] = others.length > 1 ? ["modules mix", "have"] : ["module mixes", "has"];
  return `${others.length} ${modules} tokens in another way than by attention and ${have} no map: ${byKind(others)}.`;
}

/** @param {{ kind: string }[]} modules */
function byKind(modules) {
  const kinds = Object.entries(Object.groupBy(modules, ({ kind }) => kind));
  return kinds.map(([kind, all = []]) => (all.length > 1 ? `${all.length} × ${kind}` : kind)).join(", ");
}

/**
 * Whether the page shows captures of more than one model.
 * @param {Pick<Meta, "texts">} meta
 */
export function haveSeveralModels({ texts }) {
  const models = texts.filter(({ removed }) => !removed).map(({ model }) => model);
  return new Set(models).size > 1;
}

/**
 * What a choice among them is called.
 * @param {Pick<Meta, "texts">} meta
 */
export function textsName(meta) {
  return haveSeveralModels(meta) ? "Capture" : "Text";
}

/**
 * A text's title; of several models also which one read it.
 * @param {Pick<Meta, "texts">} meta
 * @param {number} text
 */
export function captureTitle(meta, text) {
  const { title, model } = meta.texts[text];
  return haveSeveralModels(meta) && model !== title ? `${title}, ${model}` : title;
}

/**
 * The head that an arrow key goes to: the one beside, or the one in the same column of the line above or below, which
 * may be another layer's.
 * @param {Pick<Layer, "key" | "heads">[]} layers
 * @param {Pick<State, "layer" | "head">} from
 * @param {[number, number]} move lines and heads
 * @param {number} [columns] heads in one line; all of them unless it is given
 */
export function headBeside(layers, { layer, head }, [down, right], columns = Infinity) {
  const y = layers.findIndex((one) => one.key === layer);
  const { heads } = layers[y];
  const at = heads.indexOf(head);
  if (!down) return { layer, head: heads[clamp(at + right, 0, heads.length - 1)] };
  const [line, column] = [Math.floor(at / columns) + down, at % columns];
  const lines = Math.ceil(heads.length / columns);
  if (line >= 0 && line < lines)
    return { layer, head: heads[clamp(line * columns + column, 0, heads.length - 1)] };
  const to = layers[y + down];
  if (!to) return { layer, head };
  const last = Math.max(0, Math.ceil(to.heads.length / columns) - 1); // line of that layer
  const first = down > 0 || !last ? 0 : last * columns;
  return { layer: to.key, head: to.heads[clamp(first + column, 0, to.heads.length - 1)] };
}
