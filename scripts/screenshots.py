"""Takes the screenshots in docs/images, in a real Chromium: the page with the bundled model and text.

    python -m scripts.screenshots [--out FOLDER] [--all]

--all takes every view, in both themes and three window sizes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from regard.cli.parts.demo_text import STORY, TITLE
from regard.cli.parts.model import Model
from regard.gpt.training.history import read_run
from regard.show.data.contents import Contents
from regard.show.server.app import Site
from regard.show.server.background import BackgroundServer
from scripts import digits_vit

ROOT = Path(__file__).parent.parent
SIZES = {"laptop": (1280, 800), "tablet": (820, 1180), "phone": (390, 844)}


class Shot(NamedTuple):
    """One screenshot: its file name, and the view, theme and window size."""

    name: str
    view: str
    theme: str = "light"
    size: tuple[int, int] = SIZES["laptop"]


def view_states(head: str) -> dict[str, str]:
    """Return the page's state in each view, as the end of its address; `head` is "layer=…&head=…"."""
    return {
        "map": f"#view=map&{head}",
        "text": f"#view=text&{head}&row=121",
        "heads": "#view=heads",
        "steps": f"#view=steps&{head}&row=240",
        "cache": "#view=cache",
        "time": "#view=time",
        "edited": f"#view=map&{head}",
    }


DOCUMENTS = [
    Shot("inspector", "map"),
    Shot("inspector-text", "text"),
    Shot("inspector-heads", "heads", "dark"),
    Shot("inspector-steps", "steps"),
    Shot("inspector-edited", "edited"),
]
PICTURE = Shot("how-to-picture", "image")


def all_shots() -> Iterator[Shot]:
    """Yield a shot of every view in both themes and three window sizes."""
    for view, theme, size in product(view_states(""), ("light", "dark"), SIZES):
        yield Shot(f"{view}-{theme}-{size}", view, theme, SIZES[size])


def take(browser: Any, address: str, state: str, shot: Shot, out: Path) -> None:
    """Open the page in a state, wait until it is drawn, and save a screenshot in the folder `out`."""
    width, height = shot.size
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=shot.theme)
    page.goto(address + state)
    page.wait_for_selector("main > section:not([hidden])")
    if shot.view == "cache":
        page.get_by_role("button", name="Generate").click()
        page.get_by_text("generated, each with the cache").wait_for(timeout=120_000)
    if shot.view == "edited":
        page.get_by_role("switch").first.click()
        page.get_by_role("button", name="What changed").click(timeout=120_000)
        page.wait_for_selector(".changed li")
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(500)
    page.screenshot(path=out / f"{shot.name}.png")
    if shot.view == "edited":
        page.get_by_role("button", name="Undo").click()
        page.wait_for_selector(".run-banner", state="hidden")
    page.close()
    print(out / f"{shot.name}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--all", action="store_true")
    args = parser.parse_args()
    sys.path.append(str(ROOT / "tests" / "browser"))  # the tests know where a Chromium is
    import chromium
    from playwright.sync_api import sync_playwright

    args.out.mkdir(parents=True, exist_ok=True)
    opened = Model.open("default")
    run = None if opened.run is None else read_run(opened.run)
    contents = Contents(opened.read(STORY), titles=[TITLE], time=run, start="auto")
    assert contents.start is not None
    layer, head = contents.start
    states = view_states(f"layer={layer}&head={head}")
    with (
        BackgroundServer(Site(contents, opened.read, opened.generate, opened.run_cut)) as running,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium.find(), args=["--no-sandbox"])
        for shot in all_shots() if args.all else DOCUMENTS:
            take(browser, running.address, states[shot.view], shot, args.out)
        with BackgroundServer(Site(Contents(digits_vit.capture_digit()))) as digits:
            take(browser, digits.address, "#view=image&layer=1&head=3", PICTURE, args.out)
        browser.close()


if __name__ == "__main__":
    main()
