// @ts-check
// The text of elements, word by word where the browser has put it.

import { measure } from "./fonts.js";

const WORD = /\S+/g;

/**
 * Draws the words of a text node.
 * @param {DrawnPart} drawn
 * @param {Text} node
 */
export function drawLetters(drawn, node) {
  const { context, style } = drawn;
  const size = parseFloat(style.fontSize);
  if (!size || !node.data.trim()) return;
  const italic = style.fontStyle === "italic" ? "italic " : "";
  context.font = `${italic}${style.fontWeight} ${size}px ${style.fontFamily}`;
  Object.assign(context, { textAlign: "left", textBaseline: "alphabetic" });
  context.fillStyle = style.color;
  const { fontBoundingBoxAscent: ascent, fontBoundingBoxDescent: descent } = measure("x", context.font);
  const range = document.createRange();
  for (const { index, 0: word } of node.data.matchAll(WORD)) {
    for (const { text, box } of linesOf(range, node, index, word)) {
      const shown = style.textTransform === "uppercase" ? text.toUpperCase() : text;
      const foot = box.top + (box.height - ascent - descent) / 2 + ascent;
      context.fillText(shown, box.left, foot, box.width);
      decorate(drawn, box, foot, size);
    }
  }
}

/**
 * A word, or its parts where it is broken over lines.
 * @param {Range} range
 * @param {Text} node
 * @param {number} index
 * @param {string} word
 */
function linesOf(range, node, index, word) {
  const boxes = (/** @type {number} */ first, /** @type {number} */ end) => {
    range.setStart(node, first);
    range.setEnd(node, end);
    return [...range.getClientRects()].filter((box) => box.width > 0);
  };
  const whole = boxes(index, index + word.length);
  if (whole.length <= 1) return whole.map((box) => ({ text: word, box }));
  /** @type {{ text: string, box: DOMRect }[]} */
  const lines = [];
  let at = index;
  for (const letter of word) {
    const [box] = boxes(at, at + letter.length);
    at += letter.length;
    const last = lines.at(-1);
    if (!box) continue;
    if (last && Math.abs(last.box.top - box.top) < 2) {
      last.text += letter;
      last.box = new DOMRect(last.box.left, last.box.top, box.right - last.box.left, last.box.height);
    } else lines.push({ text: letter, box });
  }
  return lines;
}

/**
 * Lines under and through words.
 * @param {DrawnPart} drawn
 * @param {DOMRect} box
 * @param {number} foot
 * @param {number} size
 */
function decorate({ context, style }, box, foot, size) {
  const kind = style.textDecorationLine;
  const up = kind.includes("line-through") ? 0.28 * size : kind.includes("underline") ? -0.12 * size : null;
  if (up === null) return;
  context.save();
  context.fillStyle = style.textDecorationColor;
  context.fillRect(box.left, foot - up, box.width, 1);
  context.restore();
}
