"""The pictures of the page in docs/images, taken in a real Chromium of the model in the box on its own text.

    python scripts/screenshots.py [--out FOLDER] [--all]

With --all every view in both themes and three sizes of window, to look at them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from regard.cli.demo_text import STORY, TITLE
from regard.cli.model import Model
from regard.gpt.training.history import read_run
from regard.show.data.contents import Contents
from regard.show.server.app import Site
from regard.show.server.background import BackgroundServer

ROOT = Path(__file__).parent.parent
SIZES = {"laptop": (1280, 800), "tablet": (820, 1180), "phone": (390, 844)}


class Shot(NamedTuple):
    name: str
    view: str
    theme: str = "light"
    size: tuple[int, int] = SIZES["laptop"]


def places(head: str) -> dict[str, str]:
    """Where each view is looked at: the head that most looks for what came next the last time."""
    return {
        "map": f"#view=map&{head}",
        "text": f"#view=text&{head}&row=300",
        "heads": "#view=heads",
        "steps": f"#view=steps&{head}&row=240",
        "cache": "#view=cache",
        "time": "#view=time",
    }


DOCUMENTS = [
    Shot("inspector", "map"),
    Shot("inspector-text", "text"),
    Shot("inspector-heads", "heads", "dark"),
    Shot("inspector-steps", "steps"),
]


def every() -> Iterator[Shot]:
    for view, theme, size in product(places(""), ("light", "dark"), SIZES):
        yield Shot(f"{view}-{theme}-{size}", view, theme, SIZES[size])


def take(browser: Any, address: str, place: str, shot: Shot, out: Path) -> None:
    width, height = shot.size
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=shot.theme)
    page.goto(address + place)
    page.wait_for_selector("main > section:not([hidden])")
    if shot.view == "cache":
        page.get_by_role("button", name="Generate").click()
        page.get_by_text("each measured both ways").wait_for(timeout=120_000)
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(500)
    page.screenshot(path=out / f"{shot.name}.png")
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
    contents = Contents(opened.read(STORY), titles=[TITLE], time=run)
    best = max(contents.heads(0), key=lambda row: row["scores"]["induction"]["value"])
    where = places(f"layer={best['layer']}&head={best['head']}")
    with (
        BackgroundServer(Site(contents, opened.read, opened.generate)) as running,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium.find(), args=["--no-sandbox"])
        for shot in every() if args.all else DOCUMENTS:
            take(browser, running.address, where[shot.view], shot, args.out)
        browser.close()


if __name__ == "__main__":
    main()
