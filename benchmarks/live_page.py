"""The included model inside a saved page, in Chromium: its size, first picture, reading and writing.

    python -m benchmarks.live_page
    python -m benchmarks.live_page --lengths 512 2048 4096

Seconds are wall times: run it on a quiet machine. Writes a dated JSON to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import machine
from benchmarks.page import ROOT, first_picture
from benchmarks.panning import median
from regard.cli.parts.demo_text import STORY
from regard.cli.parts.model import Model
from regard.show.saved.bundle import write

TOKENS = 64  # that the model writes
PATIENCE = 900_000  # milliseconds


def read(page: Any, text: str) -> float:
    """The seconds until a text is read and shown."""
    before = page.locator("#text").input_value()
    page.get_by_text("Read another text").first.click()
    page.get_by_label("A text to read").locator("visible=true").fill(text)
    start = time.perf_counter()
    page.get_by_role("button", name="Read it").click()
    while page.locator("#text").input_value() == before:
        page.wait_for_timeout(20)
    return time.perf_counter() - start


def write_tokens(page: Any) -> float:
    """The tokens that the model writes in a second with its cache, after the prompt: the median."""
    page.get_by_role("tab", name="Cache").click()
    page.get_by_label("Number of tokens to generate").fill(str(TOKENS))
    page.get_by_role("button", name="Generate").click()
    page.get_by_text(f"{TOKENS} tokens generated, each").wait_for()
    titles = [token.get_attribute("title") or "" for token in page.locator(".written .tok").all()]
    times = [float(match[1]) for title in titles[1:] if (match := re.match(r"([\d.]+) ms", title))]
    return 1000 / median(times)


def measure(browser: Any, folder: Path, lengths: list[int]) -> dict[str, Any]:
    """Everything that is measured of one page."""
    model = Model.open("default")
    path = write(model.read(STORY), folder / "page.html", model=model._gpt)
    result: dict[str, Any] = {"megabytes": path.stat().st_size / 1e6}
    result["first_picture"] = first_picture(browser, path)
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.set_default_timeout(PATIENCE)
    page.goto(path.as_uri() + "#view=text")
    result["first_text"] = read(page, "The cat sat. The cat")  # with opening the model
    result["tokens_per_second"] = write_tokens(page)
    ids = model.encode(STORY * 20)
    for length in lengths:
        text = model.tokenizer.decode(ids[: length - 2])
        result[f"read_{length}"] = read(page, text)
    page.close()
    return result


def main() -> None:
    from playwright.sync_api import sync_playwright

    sys.path.insert(0, str(ROOT.parent / "tests" / "browser"))
    import chromium

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="*", default=[512], help="tokens of the texts to read")
    lengths = parser.parse_args().lengths
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=chromium.find(), args=arguments)
        result = {"machine": machine("cpu"), **measure(browser, Path(folder), lengths)}
        browser.close()
    name = f"live-page-{datetime.date.today()}.json"
    (ROOT / "results" / name).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
