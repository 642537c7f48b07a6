"""Frame times of the page's map during a drag in a real browser."""

from __future__ import annotations

from typing import Any

DRAG = """
([x, y, frames]) => new Promise((resolve) => {
  const canvas = document.elementFromPoint(x, y);
  const times = [];
  const step = (now) => {
    times.push(now);
    if (times.length > frames) return resolve(times.slice(1).map((time, i) => time - times[i]));
    // A circle: every frame shows another part of the map, so that new tiles have to be loaded.
    const angle = (times.length / frames) * 2 * Math.PI;
    const place = { clientX: x + 240 * Math.sin(angle), clientY: y + 200 * (Math.cos(angle) - 1) };
    const held = { pointerId: 1, pointerType: "mouse", buttons: 1 };
    canvas.dispatchEvent(new PointerEvent("pointermove", { ...place, ...held }));
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})
"""


def drag(page: Any, canvas: str, frames: int = 90) -> list[float]:
    """The milliseconds between the frames of a drag on a canvas."""
    box = page.locator(canvas).bounding_box()
    x, y = box["x"] + 0.6 * box["width"], box["y"] + 0.6 * box["height"]
    page.mouse.move(x, y)
    page.mouse.down()
    times: list[float] = page.evaluate(DRAG, [x, y, frames])
    page.mouse.up()
    return times


def median(times: list[float]) -> float:
    return sorted(times)[len(times) // 2]
