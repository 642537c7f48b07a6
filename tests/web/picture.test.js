// Pictures as lists of drawing commands, and how they are written.

import assert from "node:assert/strict";
import { test } from "node:test";
import { inflateSync } from "node:zlib";
import { parseColour } from "../../src/regard/show/web/picture/colour.js";
import { coreLetter } from "../../src/regard/show/web/picture/core_fonts.js";
import { composeFigure, wrapLines } from "../../src/regard/show/web/picture/figure.js";
import { fontFace, textWidth } from "../../src/regard/show/web/picture/fonts.js";
import { writeCsv } from "../../src/regard/show/web/picture/numbers.js";
import { writePdf } from "../../src/regard/show/web/picture/pdf.js";
import { cellPaths, enlarged } from "../../src/regard/show/web/picture/pixels.js";
import { Recording } from "../../src/regard/show/web/picture/recording.js";
import { writeSvg } from "../../src/regard/show/web/picture/svg.js";
import { near } from "./helpers.js";

/** @type {DrawGlyph} */
const boxGlyph = (text) => ({
  image: { width: 1, height: 1, data: new Uint8ClampedArray([0, 0, 0, 255]) },
  left: 0,
  bottom: -200,
  wide: 500,
  high: 1000,
  advance: 500 * [...text].length,
});

/**
 * @param {Recording} drawing
 * @param {DrawGlyph} [glyph]
 */
async function pdfOf(drawing, glyph = boxGlyph) {
  const bytes = await writePdf(drawing.picture("Ein Bild: 图", 10), glyph);
  const file = Buffer.from(bytes).toString("latin1");
  const streams = [...file.matchAll(/\/Length (\d+) >>\nstream\n/g)].map(({ index, 0: head, 1: length }) => {
    const first = index + head.length;
    return inflateSync(bytes.subarray(first, first + Number(length))).toString("latin1");
  });
  return { bytes, file, streams };
}

test("points are those of the picture, whatever moved and turned them", () => {
  const drawing = new Recording();
  drawing.translate(10, 20);
  drawing.save();
  drawing.rotate(Math.PI / 2);
  drawing.fillRect(0, 0, 4, 2);
  drawing.restore();
  drawing.scale(2, 2);
  drawing.strokeRect(0, 0, 1, 1);
  const [fill, stroke] = /** @type {[FillCommand, StrokeCommand]} */ (drawing.commands);
  const corner = fill.path[2]; // (4, 2) turned to the right is (-2, 4)
  near(Number(corner[1]), 8, 1e-9);
  near(Number(corner[2]), 24, 1e-9);
  assert.equal(stroke.width, 2);
  assert.deepEqual(stroke.path[1], ["L", 12, 20]);
});

test("a picture is trimmed to what is seen: neither white paper nor what is clipped counts", () => {
  const drawing = new Recording();
  drawing.fillStyle = "#fff";
  drawing.fillRect(0, 0, 1000, 1000);
  drawing.save();
  drawing.beginPath();
  drawing.rect(100, 100, 50, 30);
  drawing.clip();
  drawing.fillStyle = "rgb(1 2 3)";
  drawing.fillRect(0, 0, 500, 500);
  drawing.restore();
  const { width, height, commands } = drawing.picture("", 5);
  assert.deepEqual([width, height], [60, 40]);
  assert.deepEqual(
    commands.map(({ kind }) => kind),
    ["fill", "clip", "fill", "end"],
  );
  const clip = /** @type {ClipCommand} */ (commands[1]);
  assert.deepEqual(clip.path[0], ["M", 5, 5]);
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

test("fonts are told apart by what every reader has of their kind", () => {
  assert.deepEqual(fontFace("italic 600 12.5px ui-serif, Georgia, serif"), {
    size: 12.5,
    family: "serif",
    bold: true,
    italic: true,
  });
  assert.equal(fontFace("11px Helvetica, sans-serif").family, "sans");
  assert.equal(fontFace('400 11px "Courier New", monospace').family, "mono");
  near(textWidth("Hi", "10px Helvetica"), 9.44, 1e-9); // 722 + 222 thousandths
});

test("letters are found in the fonts of every reader, or in none", () => {
  assert.deepEqual(coreLetter("A", "Helvetica"), { font: "Helvetica", byte: 65, width: 667 });
  assert.deepEqual(coreLetter("…", "Helvetica"), { font: "Helvetica", byte: 133, width: 1000 });
  assert.deepEqual(coreLetter("↵", "Courier"), { font: "Symbol", byte: 191, width: 658 });
  assert.equal(coreLetter("✓", "Helvetica")?.font, "ZapfDingbats");
  for (const letter of ["你", "ا", "👩‍👩‍👧", "\u0000", "\u0081", "\u00ad", "é́", "Ж"])
    assert.equal(coreLetter(letter, "Helvetica"), null, letter);
});

test("a PDF file holds text as text, as wide as it was measured", async () => {
  const drawing = new Recording(() => 40);
  drawing.font = "10px Helvetica";
  drawing.fillText("A→b", 0, 0);
  const { file, streams } = await pdfOf(drawing);
  const [content] = streams;
  assert.match(content, /\/F0 10 Tf <41> Tj/);
  assert.match(content, /\/F1 10 Tf <ae> Tj/); // the arrow, in Symbol
  near(Number(/([\d.]+) Tz/.exec(content)?.[1]), (100 * 40) / 22.1, 0.01);
  assert.match(file, /\/BaseFont \/Helvetica \/Encoding \/WinAnsiEncoding/);
  assert.match(file, /\/Title <feff00450069006e/);
  assert.ok(streams.some((text) => text.includes("<ae> <2192>"))); // and means an arrow when it is copied
});

test("every object of a PDF file is where its table says", async () => {
  const drawing = new Recording();
  drawing.fillText("x 你好", 0, 0);
  const { bytes, file } = await pdfOf(drawing);
  const place = Number(/startxref\n(\d+)/.exec(file)?.[1]);
  const lines = file.slice(place).split("\n");
  assert.equal(lines[0], "xref");
  const count = Number(lines[1].split(" ")[1]);
  for (let n = 1; n < count; n++) {
    const offset = Number(lines[2 + n].slice(0, 10));
    assert.equal(
      Buffer.from(bytes.subarray(offset, offset + 12))
        .toString("latin1")
        .split("\n")[0],
      `${n} 0 obj`,
    );
  }
});

test("what no usual font has is drawn, and means its own letters", async () => {
  /** @type {string[]} */
  const drawn = [];
  const drawing = new Recording();
  drawing.fillText("ab你好 c", 0, 0);
  drawing.fillText("مرحبا abc", 0, 20); // right to left: the whole line is the browser's
  drawing.fillText("你好", 0, 40); // the same again
  const { file, streams } = await pdfOf(drawing, (text, font, colour) => {
    drawn.push(text);
    return boxGlyph(text, font, colour);
  });
  assert.deepEqual(drawn, ["你好", "مرحبا abc"]);
  assert.match(file, /\/Subtype \/Type3/);
  const meanings = streams.find((text) => text.includes("<4f60597d>"));
  assert.ok(meanings?.includes("<01> <4f60597d>"));
  assert.match(streams[0], /<01> Tj[^]*<02> Tj[^]*<01> Tj/);
});

test("transparent colours and images keep what is below them", async () => {
  const drawing = new Recording();
  drawing.fillStyle = "rgba(0, 0, 0, 0.25)";
  drawing.fillRect(0, 0, 10, 10);
  const data = new Uint8ClampedArray(4 * 120 * 120).fill(128);
  drawing.imageSmoothingEnabled = false;
  drawing.drawPixels({ width: 120, height: 120, data }, 0, 0, 300, 300);
  const { file, streams } = await pdfOf(drawing);
  assert.match(file, /\/ca 0.25 \/CA 0.25/);
  assert.match(file, /\/Width 600 \/Height 600[^]*\/SMask \d+ 0 R/); // too many for rectangles, and enlarged
  assert.match(streams[0], /\/A1 gs\nq 300 0 0 -300 10 310 cm \/X0 Do Q/);
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
  const large = enlarged({ width: 2, height: 1, data: data.slice(4, 12) }, 5);
  assert.deepEqual([large.width, large.height], [10, 5]);
  assert.deepEqual([...large.data.slice(16, 24)], [255, 0, 0, 255, 0, 0, 255, 255]);
});

test("an SVG file holds text as text, and nothing in it is taken for a tag", () => {
  const drawing = new Recording();
  drawing.textAlign = "right";
  drawing.fillText("</text><script>\u0000\ud800", 50, 10);
  const svg = writeSvg(drawing.picture("<title>", 2), () => "");
  assert.ok(svg.includes("&#60;/text&#62;&#60;script&#62;\ufffd\ufffd</text>"));
  assert.match(svg, /text-anchor="end"/);
  assert.match(svg, /<title>&#60;title&#62;<\/title>/);
});

test("words are wrapped, and a word that is too long is broken", () => {
  const measure = (/** @type {string} */ text) => text.length;
  assert.deepEqual(wrapLines("one two three", measure, 7), ["one two", "three"]);
  assert.deepEqual(wrapLines("a abcdefgh b", measure, 4), ["a", "abcd", "efgh", "b"]);
});

test("a figure has its heading, its picture and what its colours mean, each below the one before", () => {
  const scale = { scale: "linear", top: 1, bottom: 0, signed: false, at: () => 0, weight: () => 0 };
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
  const texts = picture.commands.filter((command) => command.kind === "text");
  const places = texts.map(({ text, matrix }) => [text, matrix[5]]);
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
