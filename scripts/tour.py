"""Records the moving picture of the README from a real saved page, in Chromium: docs/images/tour-*.webp.

    python scripts/tour.py [--out FOLDER] [--frames FOLDER]

The scenes lead from a text to the map of one head, to one weight, and to the steps that compute it. There is
one picture for each theme. --frames keeps every frame as a PNG file, to look at.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

ROOT = Path(__file__).parent.parent
THEMES = ("light", "dark")
WIDTH, HEIGHT, CAPTION, DENSITY = 1000, 700, 64, 2  # in CSS pixels; a frame has DENSITY² as many
LIMIT = 1_500_000  # bytes of one picture
HEAD = "layer=4&head=0"  # the induction head of the included model
QUERY, KEY = 242, 66  # "will" in "the ships will", and "come", which followed the first "the ships will"
WHOLE, CLOSE = 1.18, 26.0  # CSS pixels for each token: the whole map, and close to the weight
MIDDLE = (238, 162)  # what is in the middle of the picture that shows the whole map: key and query
ZOOM_FRAMES = 9
ENCODING: dict[str, Any] = {"quality": 86, "method": 6, "allow_mixed": True, "minimize_size": True}

COLOUR = "name => getComputedStyle(document.documentElement).getPropertyValue('--' + name)"  # of the theme
CAPTION_PAGE = """<meta name="color-scheme" content="light dark">
<body style="margin: 0; background: {paper}; color: {ink}; font: 20px/1.3 Georgia, serif">
<p style="margin: 0; height: {height}px; box-sizing: border-box; border-top: 1px solid {line}; display: flex;
align-items: center; justify-content: center"><span>{text}</span></p></body>"""


class Scene(NamedTuple):
    """One still: the page's state, what it says below, how long it stays, and how far it is scrolled."""

    state: str
    caption: str
    milliseconds: int = 4500
    scroll_to: str = ""


def scenes() -> Iterator[Scene]:
    """Yield the scenes in their order. {weight} in a caption is the number that the page shows."""
    row, cell = f"{HEAD}&row={QUERY}", f"{HEAD}&row={QUERY}&col={KEY}"
    text = "A model reads a text. In this head, <i>will</i> attends to <i>come</i>, which followed it before."
    yield Scene(f"view=text&{row}", text)
    whole = "The map of that head, for every token: each short diagonal is a phrase that comes back."
    yield Scene(f"view=map&{HEAD}", whole)
    for state in zoom_states():
        yield Scene(state, whole, 90)
    weight = (
        "One weight: <i>will</i> puts {weight} of its attention on the <i>come</i> that followed it before."
    )
    yield Scene(f"view=map&{cell}&x={KEY}&y={QUERY}&zoom={CLOSE}", weight)
    steps = f"view=steps&{row}"
    yield Scene(steps, "Its steps: the dot product of the query with every key …", scroll_to="Query and keys")
    yield Scene(
        steps, "… divided by √d, masked, and turned into weights by softmax.", scroll_to="Divided by √d"
    )


def zoom_states() -> Iterator[str]:
    """Yield the page's states on the way from the whole map to the weight, which moves to the middle."""
    for i in range(1, ZOOM_FRAMES + 1):
        share = i / (ZOOM_FRAMES + 1)
        share = share * share * (3 - 2 * share)  # slow at both ends
        zoom = WHOLE * (CLOSE / WHOLE) ** share
        away = (1 - share) * WHOLE / zoom
        x, y = KEY + (MIDDLE[0] - KEY) * away, QUERY + (MIDDLE[1] - QUERY) * away
        yield f"view=map&{HEAD}&x={x:.2f}&y={y:.2f}&zoom={zoom:.2f}"


def show(page: Any, scene: Scene) -> Image.Image:
    """Bring the page into a scene's state, wait until it is drawn, and return a picture of it."""
    page.evaluate("state => { location.hash = state; }", scene.state)
    page.wait_for_timeout(900)
    if scene.scroll_to:
        heading = page.get_by_role("heading", name=scene.scroll_to).first
        heading.evaluate("node => scrollTo(0, scrollY + node.getBoundingClientRect().top - 24)")
        page.wait_for_timeout(300)
    return picture(page)


def picture(page: Any) -> Image.Image:
    """Return a screenshot."""
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def record(page: Any, strip: Any) -> Iterator[tuple[Image.Image, int]]:
    """Yield every frame, a picture of the page above its caption, with its milliseconds."""
    colours = {name: page.evaluate(COLOUR, name) for name in ("paper", "ink", "line")}
    for scene in scenes():
        shown = show(page, scene)
        text = scene.caption
        if "{weight}" in text:
            text = text.format(weight=f"{float(page.locator('.tip').text_content()):.2f}")
        strip.set_content(CAPTION_PAGE.format(**colours, height=CAPTION, text=text))
        frame = Image.new("RGB", (WIDTH * DENSITY, (HEIGHT + CAPTION) * DENSITY))
        frame.paste(shown, (0, 0))
        frame.paste(picture(strip), (0, HEIGHT * DENSITY))
        yield frame, scene.milliseconds


def save(frames: list[tuple[Image.Image, int]], path: Path) -> None:
    """Write an animated WebP that plays for ever."""
    first, *rest = [frame for frame, _ in frames]
    durations = [milliseconds for _, milliseconds in frames]
    first.save(path, save_all=True, append_images=rest, duration=durations, loop=0, **ENCODING)
    size = path.stat().st_size
    print(f"{path}: {len(frames)} frames, {sum(durations) / 1000:.0f} s, {size / 1e6:.2f} MB")
    if size > LIMIT:
        sys.exit(f"{path} is larger than {LIMIT / 1e6} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--frames", type=Path)
    args = parser.parse_args()
    sys.path.append(str(ROOT / "tests" / "browser"))  # the tests know where a Chromium is
    import chromium
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        saved = Path(folder) / "page.html"
        subprocess.run([sys.executable, "-m", "regard", "inspect", "--out", saved], check=True)
        browser = playwright.chromium.launch(executable_path=chromium.find(), args=["--no-sandbox"])
        for theme in THEMES:
            options = {"device_scale_factor": DENSITY, "color_scheme": theme}
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, **options)
            strip = browser.new_page(viewport={"width": WIDTH, "height": CAPTION}, **options)
            page.goto(f"{saved.as_uri()}#view=text&{HEAD}")
            page.wait_for_selector("main > section:not([hidden])")
            frames = list(record(page, strip))
            if args.frames:
                args.frames.mkdir(parents=True, exist_ok=True)
                for i, (frame, _) in enumerate(frames):
                    frame.save(args.frames / f"{theme}-{i:02}.png")
            save(frames, args.out / f"tour-{theme}.webp")
        browser.close()


if __name__ == "__main__":
    main()
