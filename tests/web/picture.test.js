// Drawings that become SVG files, and tables.

import assert from "node:assert/strict";
import { test } from "node:test";
import { parseColour } from "../../src/regard/show/web/picture/colour.js";
import { composeFigure, wrapLines } from "../../src/regard/show/web/picture/figure.js";
import { fontFace } from "../../src/regard/show/web/picture/fonts.js";
import { writeCsv } from "../../src/regard/show/web/picture/numbers.js";
import { cellPaths, enlargement } from "../../src/regard/show/web/picture/pixels.js";
import { SvgDrawing } from "../../src/regard/show/web/picture/svg_drawing.js";

/** A canvas that measures every letter as five pixels: Node.js has none. */
class RulerCanvas {
  getContext() {
    return { font: "", measureText: (/** @type {string} */ text) => ({ width: 5 * text.length }) };
  }
}
Object.assign(globalThis, { OffscreenCanvas: RulerCanvas });

test("points are those of the picture, whatever moved and turned them", () => {
  const drawing = new SvgDrawing();
  drawing.translate(10, 20);
  drawing.save();
  drawing.rotate(Math.PI / 2);
  drawing.fillRect(0, 0, 4, 2);
  drawing.restore();
  drawing.transform([2, 0, 0, 2, 0, 0]);
  drawing.strokeRect(0, 0, 1, 1);
  const [fill, stroke] = drawing.lines;
  assert.match(fill, /d="M10 20L10 24L8 24L8 20Z"/); // (4, 2) turned to the right is (-2, 4)
  assert.match(stroke, /d="M10 20L12 20L12 22L10 22Z".* stroke-width="2"/);
});

test("a picture is trimmed to what is seen: neither white paper nor what is clipped counts", () => {
  const drawing = new SvgDrawing();
  drawing.fillStyle = "#fff";
  drawing.fillRect(0, 0, 1000, 1000);
  drawing.save();
  drawing.beginPath();
  drawing.rect(100, 100, 50, 30);
  drawing.clip();
  drawing.fillStyle = "rgb(1 2 3 / 0.5)";
  drawing.fillRect(0, 0, 500, 500);
  drawing.restore();
  const { width, height, svg } = drawing.picture("", 5);
  assert.deepEqual([width, height], [60, 40]);
  assert.match(svg, /viewBox="95 95 60 40"/);
  assert.match(svg, /<g clip-path="url\(#clip0\)">\n<path[^>]*fill="#010203" fill-opacity="0.5"\/>\n<\/g>/);
});

test("colours are read as style sheets write them", () => {
  assert.deepEqual(parseColour("#1d2026"), [29, 32, 38, 1]);
  assert.deepEqual(
    parseColour("#fff8").map((x) => Number(x.toFixed(2))),
    [255, 255, 255, 0.53],
  );
  assert.deepEqual(parseColour("rgb(1 2 3)"), [1, 2, 3, 1]);
  assert.deepEqual(parseColour("rgba(1, 2, 3, 0.5)"), [1, 2, 3, 0.5]);
});

test("fonts are told apart by what most systems have of their kind", () => {
  const { size, ...face } = fontFace("italic 600 12.5px ui-serif, Georgia, serif");
  assert.equal(size, 12.5);
  assert.match(face["font-family"], /^Times/);
  assert.deepEqual([face["font-weight"], face["font-style"]], ["bold", "italic"]);
  assert.match(fontFace("11px Helvetica, sans-serif")["font-family"], /^Helvetica/);
  assert.match(fontFace('400 11px "Courier New", monospace')["font-family"], /^"Courier New"/);
});

test("cells that are few become rectangles, neighbours of one colour a single one", () => {
  const [red, blue, none] = [
    [255, 0, 0, 255],
    [0, 0, 255, 255],
    [0, 0, 0, 0],
  ];
  const data = new Uint8ClampedArray([red, red, blue, none, blue, none].flat());
  const image = { width: 3, height: 2, data };
  const cells = cellPaths(image, { x: 10, y: 0, across: 5, down: 4 });
  assert.deepEqual(
    cells?.map(({ colour }) => colour),
    [
      [255, 0, 0, 1],
      [0, 0, 255, 1],
    ],
  );
  assert.deepEqual(cells?.[0].rectangles, [[10, 0, 10.2, 4]]); // it reaches under the next, and not over a gap
  assert.deepEqual(cells?.[1].rectangles, [
    [20, 0, 5, 4],
    [15, 4, 5, 4],
  ]);
  assert.equal(enlargement({ width: 2, height: 1, data }, 5), 5); // twice as many pixels as the page has
  assert.equal(enlargement({ width: 2000, height: 1, data }, 1e5), 1);
});

test("an SVG file holds text as text, and nothing in it is taken for a tag", () => {
  const drawing = new SvgDrawing();
  drawing.textAlign = "right";
  drawing.fillText("</text><script>\u0000\ud800", 50, 10);
  const { svg } = drawing.picture("<title>", 2);
  assert.ok(svg.includes("&#60;/text&#62;&#60;script&#62;\ufffd\ufffd</text>"));
  assert.match(svg, /x="50" y="10".* text-anchor="end"/);
  assert.match(svg, /<title>&#60;title&#62;<\/title>/);
});

test("words are wrapped, and a word that is too long is broken", () => {
  const measure = (/** @type {string} */ text) => text.length;
  assert.deepEqual(wrapLines("one two three", measure, 7), ["one two", "three"]);
  assert.deepEqual(wrapLines("a abcdefgh b", measure, 4), ["a", "abcd", "efgh", "b"]);
});

test("a figure has its heading, its picture and what its colours mean, each below the one before", () => {
  const scale = { scale: "linear", top: 1, bottom: 0, signed: false, at: () => 0 };
  const picture = composeFigure(
    {
      heading: "model: layer 1, head 2",
      lines: ["Text"],
      notes: ["One cell is one weight."],
      warning: "Doubt.",
    },
    {
      bar: {
        scale,
        marks: [
          [0, "0"],
          [1, "1"],
        ],
      },
      hatch: "hidden by the mask",
      dashed: "",
    },
    (context) => context.fillRect(300, 300, 50, 50),
  );
  const places = [...picture.svg.matchAll(/ y="([-\d.]+)"[^>]*>([^<]*)<\/text>/g)].map(([, y, text]) => [
    text,
    y,
  ]);
  const order = ["model: layer 1, head 2", "Text", "Doubt.", "hidden by the mask", "One cell is one weight."];
  const heights = order.map((name) => Number(places.find(([text]) => text === name)?.[1]));
  assert.deepEqual(
    heights,
    heights.toSorted((a, b) => a - b),
  );
  assert.ok(picture.height < 220); // the square was moved up to the words
});

test("tables are quoted, and never a formula", async () => {
  const csv = await writeCsv([["=1+1", 'a "b"', null, -0.5, " t"]]).text();
  assert.equal(csv, `"'=1+1","a ""b""",,-0.5," t"\r\n`);
});
