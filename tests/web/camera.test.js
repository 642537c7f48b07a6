// The camera: which part of a map is seen, and that what is under the pointer stays there.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Camera } from "../../src/regard/show/web/map/camera.js";
import { near, numbers } from "./helpers.js";

function camera({ T = 100, S = 200, width = 400, height = 300 } = {}) {
  const made = Object.assign(new Camera(), { T, S, width, height });
  made.fit();
  return made;
}

test("the whole map fits into the picture, at its upper left", () => {
  const c = camera(); // 400 / 200 = 2 pixels a key, 300 / 100 = 3 a query: 2 is what fits
  assert.equal(c.whole, 2);
  assert.equal(c.zoom, 2);
  assert.ok(c.isWhole);
  assert.deepEqual(c.at([0, 0]), [0, 0]);
  assert.deepEqual(c.point([200, 100]), [400, 200]);
  assert.deepEqual(c.frame, { left: 0, top: 0, right: 200, bottom: 150 });
});

test("points and places are each other's opposite", () => {
  const random = numbers(1);
  const c = camera();
  for (let n = 0; n < 200; n++) {
    c.zoomAt(0.5 + random() * 2, [random() * 400, random() * 300]);
    const [px, py] = [random() * 400, random() * 300];
    const [x, y] = c.point(c.at([px, py]));
    near(x, px, 1e-9);
    near(y, py, 1e-9);
  }
});

test("zooming in leaves what is under the pointer where it is", () => {
  const c = camera();
  const before = c.at([250, 120]);
  c.zoomAt(4, [250, 120]);
  assert.equal(c.zoom, 8);
  const after = c.at([250, 120]);
  near(after[0], before[0], 1e-9);
  near(after[1], before[1], 1e-9);
});

test("whatever is asked of it, the map stays in the picture and the zoom in its bounds", () => {
  const random = numbers(2);
  for (let n = 0; n < 50; n++) {
    const size = { T: 1 + Math.floor(random() * 5000), S: 1 + Math.floor(random() * 5000) };
    const c = camera(size);
    for (let m = 0; m < 40; m++) {
      if (random() < 0.5) c.pan([(random() - 0.5) * 4000, (random() - 0.5) * 4000]);
      else c.zoomAt(10 ** (random() * 6 - 3), [random() * 400, random() * 300]);
      const { left, top, right, bottom } = c.frame;
      assert.ok(c.zoom >= c.whole && c.zoom <= c.closest);
      assert.ok(left >= -1e-6 && top >= -1e-6);
      if (c.S * c.zoom > c.width) assert.ok(right <= c.S + 1e-6);
      if (c.T * c.zoom > c.height) assert.ok(bottom <= c.T + 1e-6);
    }
  }
});

test("a zoom that is not a number becomes the whole map", () => {
  const c = camera();
  Object.assign(c, { x: 1e9, y: -5, zoom: NaN });
  c.settle();
  assert.equal(c.zoom, c.whole);
  assert.deepEqual([c.x, c.y], [100, 75]);
});

test("revealing a cell moves as little as needed", () => {
  const c = camera({ T: 1000, S: 1000 });
  Object.assign(c, { zoom: 10, x: 500, y: 500 });
  c.settle(); // 40 × 30 tokens are seen
  c.reveal({ col: 510, row: 505 });
  assert.deepEqual([c.x, c.y], [500, 500]);
  c.reveal({ col: 530, row: 480 }); // its right edge is key 531, its upper edge query 480
  assert.deepEqual([c.frame.right, c.frame.top], [531, 480]);
});
