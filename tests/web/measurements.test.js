// The Write view's arithmetic: what a generation measured.

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  agreement,
  gainOf,
  measurements,
  medianTimes,
  savings,
  timeChart,
} from "../../src/regard/show/web/write/measurements.js";
import { openingSentence, plainToken } from "../../src/regard/show/web/write/prompt.js";
import { near } from "./helpers.js";

const step = (position, cached, recomputed, parts = {}) => ({
  position,
  seconds: { cached, recomputed },
  computed: { cached: 1, recomputed: position },
  keys_read: { cached: position, recomputed: (position * (position + 1)) / 2 },
  cache_bytes: 1024 * position,
  difference: 1e-6,
  same: true,
  ...parts,
});
const STEPS = [
  step(10, 0.1, 0.1, { computed: { cached: 10, recomputed: 10 } }),
  step(11, 0.002, 0.02),
  step(12, 0.004, 0.06),
  step(13, 0.003, 0.04, { same: false, difference: 2e-5 }),
];

test("the table sums what was computed and takes the median time without the prompt", () => {
  const [computed, keys, median, first, held] = measurements(STEPS, 2);
  assert.deepEqual([computed.cached, computed.recomputed], ["26", "92"]);
  assert.deepEqual([keys.cached, keys.recomputed], ["46", "290"]);
  assert.deepEqual([median.cached, median.recomputed, median.gain], ["3.0 ms", "40.0 ms", "13× less"]);
  assert.deepEqual([first.cached, first.gain], ["100 ms", ""]);
  assert.deepEqual([held.cached, held.recomputed, held.gain], ["13.0 KiB", "none", ""]);
  assert.deepEqual(medianTimes(STEPS.slice(0, 1)), { cached: 0.1, recomputed: 0.1 });
});

test("a gain is said only where there is one", () => {
  assert.equal(gainOf(1, 1.04), "");
  assert.equal(gainOf(2, 3), "1.5× less");
  assert.equal(gainOf(1, 100), "100× less");
  assert.equal(gainOf(0, 5), "");
  assert.equal(gainOf(5, 0), "");
});

test("what the cache saves is a sentence, where it saves something", () => {
  assert.equal(
    savings(STEPS, 2),
    "With its KV cache the model wrote this with 3.5× less computation, and each token took 13× less time.",
  );
  const slow = STEPS.map((step) => ({ ...step, seconds: { cached: 1, recomputed: 1 } }));
  assert.match(savings(slow, 2), /3\.5× less computation\.$/);
  assert.equal(savings(STEPS.slice(0, 1), 2), "");
  assert.equal(savings([], 2), "");
});

test("both ways agree as far as they do", () => {
  assert.match(agreement(STEPS), /2\.0e-5\. .* in 3 of 4 steps\.$/);
  assert.match(agreement(STEPS.slice(0, 2)), /in every step\.$/);
});

test("the chart spans all times, in milliseconds", () => {
  const { x, y, series } = timeChart(STEPS);
  assert.deepEqual([x.low, x.high], [10, 13]);
  near(y.high, 105, 1e-9);
  assert.deepEqual(series[1].points[2], [12, 4]);
  assert.equal(timeChart(STEPS.slice(0, 1)).x.high, 11);
});

test("a prompt is the first sentence, without special tokens", () => {
  assert.equal(openingSentence({ tokens: ["<|endoftext|>", " The", " end", ".", " More"] }), "The end.");
  assert.equal(openingSentence({ tokens: ["a".repeat(300)] }).length, 200);
  assert.equal(openingSentence({ tokens: null }), "");
  assert.equal(plainToken(" a\n\tb"), " a\n⇥b");
});
