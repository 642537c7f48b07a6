// The state and the address: there and back, and nothing but declared names.

import assert from "node:assert/strict";
import { test } from "node:test";
import { DEFAULTS, format, parse, typedText } from "../../src/regard/show/web/state.js";
import { numbers } from "./helpers.js";

test("an empty address is the default, and the default an empty address", () => {
  assert.deepEqual(parse(""), DEFAULTS);
  assert.deepEqual(parse("#"), DEFAULTS);
  assert.equal(format(DEFAULTS), "#");
});

test("what is named is taken, with its type", () => {
  const state = parse("#view=text&layer=decoder.3&head=5&zoom=12.5&direction=by&trainingStep=16");
  const named = { view: "text", layer: "decoder.3", head: 5, zoom: 12.5, direction: "by", trainingStep: 16 };
  assert.deepEqual(state, { ...DEFAULTS, ...named });
  assert.equal(format(state), "#view=text&layer=decoder.3&head=5&zoom=12.5&direction=by&trainingStep=16");
});

test("a link may name a head with its layer, a token, and a text to be read", () => {
  const place = { layer: "decoder.4", head: 0, row: 121 };
  assert.deepEqual(parse("#text=Once%20upon&head=decoder.4.0&token=121"), { ...DEFAULTS, ...place });
  assert.equal(typedText("#text=Once%20upon&head=4.0"), "Once upon");
  assert.equal(typedText("#text=1&head=4.0"), "");
  assert.equal(typedText(""), "");
  const typed = new Map([[2, "Once upon"]]);
  assert.equal(format({ ...DEFAULTS, text: 2 }, typed), "#text=Once+upon");
  assert.equal(parse("#text=Once+upon", typed).text, 2);
});

test("what is not declared, empty or not a number is left out", () => {
  const odd =
    "#__proto__=1&constructor=2&toString=3&nothing=4&head=&row=x&col=1e999&zoom=NaN&scope=&x=Infinity";
  const state = parse(odd);
  assert.deepEqual(state, DEFAULTS);
  assert.equal(Object.getPrototypeOf(state), Object.prototype);
  assert.deepEqual(parse("#%E0%A4%A&%%%"), DEFAULTS);
});

test("a long value is cut, and signs survive the way there and back", () => {
  assert.equal(parse(`#layer=${"a".repeat(5000)}`).layer.length, 400);
  const layer = "a&b=c#d e+f/ü\u202e";
  assert.equal(parse(format({ ...DEFAULTS, layer })).layer, layer);
});

test("the address has three decimals", () => {
  assert.equal(format({ ...DEFAULTS, x: 1 / 3, y: 100 }), "#x=0.333&y=100");
});

test("any state comes back as it was", () => {
  const random = numbers(9);
  for (let n = 0; n < 300; n++) {
    const state = { ...DEFAULTS };
    for (const name of Object.keys(DEFAULTS)) {
      if (random() < 0.5) continue;
      const number = Math.round((random() - 0.3) * 1e6) / (name === "head" ? 1 : 1000);
      state[name] = typeof DEFAULTS[name] === "number" ? number : `${name}/${number}`;
    }
    assert.deepEqual(parse(format(state)), state);
  }
});
