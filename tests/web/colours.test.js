// Colours: ramps that rise evenly, scales that go there and back.

import assert from "node:assert/strict";
import { test } from "node:test";
import { css, inkOn, makeScale, ramp } from "../../src/regard/show/web/parts/colours.js";
import { near } from "./helpers.js";

/** The lightness of an sRGB colour in OKLab, from its definition. */
function lightness([r, g, b]) {
  const linear = [r, g, b].map((byte) => {
    const x = byte / 255;
    return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
  });
  const cone = (a, b, c) => Math.cbrt(a * linear[0] + b * linear[1] + c * linear[2]);
  const l = cone(0.4122214708, 0.5363325363, 0.0514459929);
  const m = cone(0.2119034982, 0.6806995451, 0.1073969566);
  const s = cone(0.0883024619, 0.2817188376, 0.6299787005);
  return 0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s;
}

/** The contrast of a hexadecimal ink on a colour, from its definition. */
function contrast(ink, colour) {
  const luminance = (bytes) =>
    bytes
      .map((byte) => (byte <= 10 ? byte / 255 / 12.92 : ((byte / 255 + 0.055) / 1.055) ** 2.4))
      .reduce((sum, x, n) => sum + [0.2126, 0.7152, 0.0722][n] * x, 0);
  const shade = [1, 3, 5].map((at) => parseInt(ink.slice(at, at + 2), 16));
  const [dark, light] = [luminance(shade), luminance(colour)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
}

for (const [name, first, last] of [
  ["light", 0.972, 0.27],
  ["dark", 0.235, 0.955],
]) {
  test(`the ${name} ramp goes from ${first} to ${last} in even steps of lightness`, () => {
    const { colours } = ramp(name);
    assert.equal(colours.length, 256);
    colours.forEach((colour, step) => {
      assert.ok(colour.every((byte) => Number.isInteger(byte) && byte >= 0 && byte <= 255));
      near(lightness(colour), first + (step / 255) * (last - first), 0.012); // bytes, and the edge of sRGB
    });
  });

  test(`the ${name} ramp's pixels are its colours, opaque, in the order of a canvas`, () => {
    const { colours, pixels } = ramp(name);
    const bytes = new Uint8Array(pixels.buffer);
    colours.forEach((colour, step) => {
      assert.deepEqual([...bytes.subarray(4 * step, 4 * step + 4)], [...colour, 255]);
    });
  });

  test(`ink can be read on every colour of the ${name} ramp`, () => {
    ramp(name).colours.forEach((colour, step) => {
      assert.ok(contrast(inkOn(step / 255, name), colour) >= 4.5);
    });
  });
}

test("a ramp is made once", () => {
  assert.equal(ramp("light").pixels, ramp("light").pixels);
  assert.equal(ramp("light", true).pixels, ramp("light", true).pixels);
  assert.notEqual(ramp("light", true).pixels, ramp("light").pixels);
});

/** What a colour looks like without one of the three kinds of cones (Viénot, Brettel and Mollon, 1999). */
const DEFICIENCIES = {
  protanopia: [
    [0.11238, 0.88762, 0],
    [0.11238, 0.88762, 0],
    [0.00401, -0.00401, 1],
  ],
  deuteranopia: [
    [0.29275, 0.70725, 0],
    [0.29275, 0.70725, 0],
    [-0.02234, 0.02234, 1],
  ],
};

for (const [name, ground, end] of [
  ["light", 0.972, 0.4],
  ["dark", 0.235, 0.82],
]) {
  test(`the diverging ramp of the ${name} theme: zero is the ground, and both halves go as far from it`, () => {
    const { colours } = ramp(name, true);
    near(lightness(colours[128]), ground, 0.012);
    for (let step = 0; step < 128; step++) {
      const share = step / 127;
      near(lightness(colours[128 + step]), ground + share * (end - ground), 0.02);
      near(lightness(colours[128 - step]), lightness(colours[128 + step]), 0.03);
    }
    const [red, , blue] = colours[128];
    assert.ok(Math.abs(red - blue) <= 2, "the ground has no hue");
  });

  test(`the signs of the ${name} theme differ with every kind of colour vision, and ink can be read on both`, () => {
    const { colours } = ramp(name, true);
    for (const matrix of Object.values(DEFICIENCIES)) {
      const seen = (colour) => matrix.map((row) => row.reduce((sum, x, n) => sum + x * colour[n], 0));
      for (const step of [40, 80, 127]) {
        const [below, above] = [seen(colours[128 - step]), seen(colours[128 + step])];
        assert.ok(Math.hypot(...below.map((x, n) => x - above[n])) > step, `${below} and ${above}`);
      }
    }
    colours.forEach((colour, step) => {
      assert.ok(contrast(inkOn(step / 255, name, true), colour) >= 4.5);
    });
  });
}

test("a signed scale is the same on both sides of zero, which is in its middle", () => {
  for (const kind of ["linear", "log"]) {
    const scale = makeScale({ scale: kind, top: 0.4, bottom: 0.001, signed: true });
    assert.equal(scale.at(0), 0.5);
    assert.equal(Math.round(255 * scale.at(0)), 128); // the step that is the ground
    assert.deepEqual([-9, -0.4, 0.4, 9].map(scale.at), [0, 0, 1, 1]);
    for (const weight of [0.002, 0.05, 0.3]) {
      near(scale.at(weight) + scale.at(-weight), 1, 1e-12);
    }
  }
});

test("what lies beyond the ends has the colour of the end", () => {
  assert.equal(css(-1, "light"), css(0, "light"));
  assert.equal(css(7, "light"), css(1, "light"));
  assert.equal(css(0, "light"), `rgb(${ramp("light").colours[0].join(" ")})`);
});

test("a linear scale", () => {
  const scale = makeScale({ scale: "linear", top: 0.5, bottom: 0.001 });
  assert.deepEqual([0, 0.125, 0.5, 2].map(scale.at), [0, 0.25, 1, 1]);
  assert.equal(scale.bottom, 0);
});

test("a log scale: each tenfold is as long as the next", () => {
  const scale = makeScale({ scale: "log", top: 1, bottom: 0.001 });
  assert.equal(scale.at(0), 0);
  assert.equal(scale.at(0.0005), 0);
  near(scale.at(0.01), 1 / 3, 1e-12);
  near(scale.at(0.1), 2 / 3, 1e-12);
  assert.equal(scale.at(5), 1);
});
