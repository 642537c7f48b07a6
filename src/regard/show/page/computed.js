// Which tokens go through the model at each step, drawn: a line a step, a column a token, both ways.

/** Draws both ways into a canvas, what is computed in the colour `run` and what is read in `read`. */
export function drawComputed(canvas, steps, run, read) {
  const style = getComputedStyle(canvas);
  const wide = canvas.clientWidth || 480;
  const columns = steps.at(-1).position;
  const row = Math.max(2, Math.min(9, Math.floor(120 / steps.length)));
  const gap = row > 3 ? 1 : 0;
  const high = 18 + row * steps.length;
  const pixel = devicePixelRatio || 1;
  canvas.width = wide * pixel;
  canvas.height = (2 * high + 14) * pixel;
  canvas.style.height = `${2 * high + 14}px`;
  const context = canvas.getContext("2d");
  context.scale(pixel, pixel);
  context.font = `12px ${style.fontFamily}`;
  const unit = wide / columns;
  ["recomputed", "cached"].forEach((way, n) => {
    const top = n * (high + 14);
    context.fillStyle = style.color;
    context.fillText(way === "cached" ? "With the cache" : "Without", 0, top + 11);
    steps.forEach((step, i) => {
      const y = top + 18 + i * row;
      const through = step.computed[way];
      if (way === "cached") {
        context.fillStyle = read;
        context.fillRect(0, y, (step.position - through) * unit, row - gap);
      }
      context.fillStyle = run;
      context.fillRect((step.position - through) * unit, y, Math.max(1.5, through * unit), row - gap);
    });
  });
  const last = steps.at(-1);
  canvas.setAttribute(
    "aria-label",
    `At the last step ${last.computed.cached} token of ${last.position} goes through the model with the cache, ` +
      `and all ${last.computed.recomputed} without it`,
  );
}
