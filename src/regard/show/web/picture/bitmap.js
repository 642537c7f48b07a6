// @ts-check
// A picture as pixels: replayed on a canvas. Here are also the two pictures that the other formats need of a browser:
// an image as an address of data, and letters that no usual font has.

import { contextOf, element } from "../common/dom.js";
import { PAPER_SANS, textWidth } from "./fonts.js";

const SHARP = 3; // pixels of a PNG for one of the page
const MOST = 16000; // pixels to a side that browsers can draw on
const GLYPH = 64; // pixels of a letter in a picture of it
const [ABOVE, BELOW] = [1.3, 0.5]; // letters above and below the baseline

/** @type {Record<PrintFont["family"], string>} */
const FAMILIES = {
  sans: PAPER_SANS,
  serif: 'Times, "Times New Roman", "Liberation Serif", serif',
  mono: '"Courier New", "Liberation Mono", Courier, monospace',
};

/** @param {Colour} colour */
const css = ([red, green, blue, alpha]) => `rgb(${red} ${green} ${blue} / ${alpha})`;

/** @param {PrintFont} face */
const fontOf = ({ size, family, bold, italic }) =>
  `${italic ? "italic " : ""}${bold ? "bold " : ""}${size}px ${FAMILIES[family]}`;

/**
 * @param {Picture} picture
 * @returns {Promise<Blob>}
 */
export function writePng(picture) {
  const { width, height, commands } = picture;
  const sharp = Math.min(SHARP, MOST / Math.max(width, height));
  const canvas = element("canvas", { width: Math.ceil(width * sharp), height: Math.ceil(height * sharp) });
  const context = contextOf(canvas);
  context.scale(sharp, sharp);
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  for (const command of commands) replay(context, command);
  return new Promise((done, failed) => {
    /** @param {Blob | null} blob */
    const finish = (blob) => (blob ? done(blob) : failed(new Error("the picture is too large")));
    canvas.toBlob(finish, "image/png");
  });
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {DrawingCommand} command
 */
function replay(context, command) {
  switch (command.kind) {
    case "clip":
      context.save();
      trace(context, command.path);
      context.clip();
      break;
    case "end":
      context.restore();
      break;
    case "fill":
      trace(context, command.path);
      context.fillStyle = css(command.colour);
      context.fill();
      break;
    case "stroke":
      trace(context, command.path);
      Object.assign(context, { strokeStyle: css(command.colour), lineWidth: command.width });
      context.setLineDash(command.dash);
      context.stroke();
      break;
    case "text":
      context.save();
      context.transform(...command.matrix);
      Object.assign(context, { font: fontOf(command.font), fillStyle: css(command.colour) });
      fitText(context, command.text, command.width);
      context.restore();
      break;
    case "image":
      context.save();
      context.transform(...command.matrix);
      context.imageSmoothingEnabled = command.smooth;
      context.drawImage(canvasOf(command.image), 0, 0, 1, 1);
      context.restore();
  }
}

/**
 * Text at the origin, as wide as it was measured.
 * @param {CanvasRenderingContext2D} context
 * @param {string} text
 * @param {number} width
 */
function fitText(context, text, width) {
  const own = context.measureText(text).width;
  if (own > 0) context.scale(width / own, 1);
  context.fillText(text, 0, 0);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Segment[]} path
 */
function trace(context, path) {
  context.beginPath();
  for (const segment of path) {
    if (segment[0] === "M") context.moveTo(segment[1], segment[2]);
    else if (segment[0] === "L") context.lineTo(segment[1], segment[2]);
    else if (segment[0] === "C")
      context.bezierCurveTo(segment[1], segment[2], segment[3], segment[4], segment[5], segment[6]);
    else context.closePath();
  }
}

/** @param {PixelImage} image */
function canvasOf({ width, height, data }) {
  const canvas = element("canvas", { width, height });
  contextOf(canvas).putImageData(new ImageData(new Uint8ClampedArray(data), width, height), 0, 0);
  return canvas;
}

/**
 * An image as an address of data.
 * @param {PixelImage} image
 */
export function encodeImage(image) {
  return canvasOf(image).toDataURL("image/png");
}

/**
 * What the browser draws for letters that no usual font has.
 * @type {DrawGlyph}
 */
export function drawGlyph(text, face, colour) {
  const wide = textWidth(text, fontOf({ ...face, size: 1 })) + 1; // letters, with a margin for what reaches beyond
  const size = Math.min(GLYPH, MOST / wide);
  const font = fontOf({ ...face, size });
  const canvas = element("canvas");
  const advance = textWidth(text, font);
  const margin = size / 2;
  canvas.width = Math.ceil(advance + 2 * margin);
  canvas.height = Math.ceil((ABOVE + BELOW) * size);
  const context = contextOf(canvas);
  Object.assign(context, { font, fillStyle: css(colour), textAlign: "left" });
  context.fillText(text, margin, ABOVE * size);
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
  const unit = 1000 / size;
  return {
    image: { width: canvas.width, height: canvas.height, data },
    left: -margin * unit,
    bottom: (ABOVE * size - canvas.height) * unit,
    wide: canvas.width * unit,
    high: canvas.height * unit,
    advance: advance * unit,
  };
}
