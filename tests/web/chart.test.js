// Charts: round ticks, a frame that holds its values, names that do not cover each other.

import assert from "node:assert/strict";
import { test } from "node:test";
import { chartFrame, spreadNames, ticks } from "../../src/regard/show/web/parts/chart.js";
import { nearestCurve } from "../../src/regard/show/web/parts/chart_pointer.js";
import { near, numbers } from "./helpers.js";

test("ticks are round and lie within", () => {
  assert.deepEqual(ticks(0, 1), [0, 0.25, 0.5, 0.75, 1]);
  assert.deepEqual(ticks(0, 2000), [0, 500, 1000, 1500, 2000]);
  const random = numbers(10);
  for (let n = 0; n < 200; n++) {
    const low = random() < 0.5 ? 0 : 100 * random();
    const high = low + 10 ** (6 * random() - 3);
    const all = ticks(low, high);
    assert.ok(all.length >= 1 && all.length <= 6, `${all.length} from ${low} to ${high}`);
    assert.ok(all.every((x) => x >= low - 1e-9 && x <= high * (1 + 1e-9)));
  }
});

const axis = (low, high) => ({ title: "", low, high, say: String });

test("values go from edge to edge, upwards", () => {
  const data = { series: [{ name: "a", kind: "", points: [] }], x: axis(0, 10), y: axis(0, 1), label: "" };
  const { margin, across, up } = chartFrame(data, 500, 200);
  assert.equal(across(0), margin.left);
  near(across(10), 500 - margin.right, 1e-9);
  assert.equal(up(0), 200 - margin.bottom);
  near(up(1), margin.top, 1e-9);
  const unnamed = chartFrame({ ...data, series: [] }, 500, 200);
  assert.ok(unnamed.margin.right < margin.right);
  assert.ok(Number.isFinite(chartFrame({ ...data, x: axis(3, 3) }, 500, 200).across(3)));
});

test("names make room for each other, from top to bottom", () => {
  const names = [50, 10, 12, 13].map((y, n) => ({ name: String(n), kind: "", x: 0, y }));
  const spread = spreadNames(names);
  assert.deepEqual(
    spread.map(({ name, y }) => [name, y]),
    [
      ["1", 10],
      ["2", 24],
      ["3", 38],
      ["0", 52],
    ],
  );
});

test("the nearest curve is pointed at, between its points as well, and its nearest value is named", () => {
  const curves = [
    { id: "a", places: [[0, 0], [100, 100]] }, // prettier-ignore
    { id: "b", places: [[0, 80]] }, // prettier-ignore
  ];
  const at = (x, y) => {
    const found = nearestCurve(curves, [x, y]);
    return found && [found.curve.id, found.at];
  };
  assert.deepEqual(at(45, 50), ["a", 0]);
  assert.deepEqual(at(60, 50), ["a", 1]);
  assert.deepEqual(at(3, 85), ["b", 0]);
  assert.equal(at(90, 20), null);
  assert.equal(nearestCurve([], [0, 0]), null);
});
