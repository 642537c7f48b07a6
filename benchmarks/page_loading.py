"""How long a reader waits for the page: on a slow line, with 1,024 heads, and with a text of 7,700 tokens.

    pip install --no-deps --target bertviz-here bertviz ipython decorator traitlets
    PYTHONPATH=bertviz-here python -m benchmarks.page_loading
    python -m benchmarks.page_loading --table    only updates the table in docs/inspector.md

The long text is read by SmolLM2 (`regard data smollm2` fetches it). Seconds count from opening the page in
Chromium, after the capture. BertViz is measured where it can do the same: for 1,024 heads the time to write
its page, which then draws nothing without its CDN; for the long text it would have to write every weight.
Writes a dated JSON to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import os
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import machine
from benchmarks.page import PICTURE, bertviz_views, update_docs
from regard import attention_map, causal
from regard.recorder import Capture, Evidence, Layer
from regard.show.data.contents import Contents
from regard.show.saved.bundle import write
from regard.show.server.app import Site
from regard.show.server.background import BackgroundServer

ROOT = Path(__file__).parent
MARKERS = "<!-- page loading: begin -->", "<!-- page loading: end -->"
SLOW = {"latency": 400, "downloadThroughput": 50_000, "uploadThroughput": 50_000, "offline": False}
PICTURES = "() => !document.querySelector('.thumb.waiting') && document.querySelectorAll('.thumb').length"
TOKENS = 7_690
WAIT = 600_000  # milliseconds


def random_capture(layers: int, heads: int, T: int, width: int = 16) -> Capture:
    """A capture of random numbers, as sharp as that of a trained model."""
    torch.manual_seed(0)
    found = []
    for number in range(layers):
        q, k = 3 * torch.randn(1, heads, T, width), torch.randn(1, heads, T, width)
        m = attention_map(q, k, mask=causal)
        evidence = Evidence(0.0, 1.0, 0.0, T, T, "causal", m.scale)
        found.append(Layer(number, f"layers.{number}", "", m, evidence, tuple(range(heads))))
    ids = torch.arange(T)[None] % 97
    return Capture(found, "random", ids, [[f" tok{i}" for i in ids[0].tolist()]])


class Stopwatch:
    """Times of one page, in seconds since it was opened."""

    def __init__(self, browser: Any, address: str, line: dict[str, Any] | None = None) -> None:
        self.page = browser.new_page(viewport={"width": 1280, "height": 800})
        if line is not None:
            session = self.page.context.new_cdp_session(self.page)
            session.send("Network.enable")
            session.send("Network.emulateNetworkConditions", line)
        self.start = time.perf_counter()
        self.page.goto(address, wait_until="commit")

    def wait_for(self, condition: str) -> float:
        """The seconds until a condition holds."""
        self.page.wait_for_function(condition, polling="raf", timeout=WAIT)
        return time.perf_counter() - self.start

    def close(self) -> None:
        self.page.close()


def best(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run with the earliest first picture: other load only ever adds."""
    return min(runs, key=lambda run: float(run["first_map"]))


def slow_line(browser: Any) -> dict[str, Any]:
    """The first view at 50 kB/s with 400 ms of latency, and the bytes of the page's own code."""
    from regard.show.server.app import page_files

    sizes = {path: len(gzip.compress(file.body, 6)) for path, file in page_files().items()}
    runs = []
    with BackgroundServer(Site(Contents(random_capture(2, 4, 64)))) as running:
        for _ in range(3):
            watch = Stopwatch(browser, running.address, SLOW)
            shown = watch.wait_for("() => document.querySelector('#tabs .tab')")
            runs.append({"first_view": shown, "first_map": watch.wait_for(PICTURE)})
            watch.close()
    first = sum(size for path, size in sizes.items() if path != "/web/later.js")
    return {"what": "slow line", "bytes": first, "bytes_later": sizes["/web/later.js"], **best(runs)}


def many_heads(browser: Any, folder: Path) -> list[dict[str, Any]]:
    """32 layers of 32 heads on 64 tokens: served and as a file."""
    seen = random_capture(32, 32, 64)
    path = write(seen, folder / "many.html")
    with BackgroundServer(Site(Contents(seen))) as running:
        runs: dict[str, list[dict[str, Any]]] = {"served": [], "saved": []}
        for _ in range(3):
            for name, address in (("served", running.address), ("saved", path.as_uri())):
                watch = Stopwatch(browser, address)
                first = watch.wait_for(PICTURE)
                runs[name].append({"first_map": first, "every_picture": watch.wait_for(PICTURES)})
                watch.close()
    rows = [{"what": f"1,024 heads, {name}", **best(times)} for name, times in runs.items()]
    dense, tokens = [m.to_dense() for m in seen], seen.tokens[0] if seen.tokens else []
    for name, view in bertviz_views().items():
        start = time.perf_counter()
        html: str = view(dense, tokens, html_action="return").data
        (folder / "bertviz.html").write_text(html, "utf-8")
        written = time.perf_counter() - start
        rows.append({"what": f"1,024 heads, BertViz {name}", "written": written, "bytes": len(html)})
    return rows


def long_text(browser: Any, folder: Path | None) -> dict[str, Any]:
    """SmolLM2 on 7,690 tokens: the first map, the first hover in Text, and the scores of Heads."""
    times: dict[str, Any] = {"what": "SmolLM2 on a long text", "tokens": TOKENS}
    seen = read_long_text(times) if folder is None else load_capture(folder)
    runs = []
    for _ in range(3):
        contents = Contents(seen)
        start = time.perf_counter()
        contents.prepare_first_view()  # as `regard inspect` does after the capture, before it opens the page
        prepared = time.perf_counter() - start
        with BackgroundServer(Site(contents)) as running:
            watch = Stopwatch(browser, running.address)
            first = {"first_map": watch.wait_for(PICTURE), "whole_map": watch.wait_for(WHOLE)}
            runs.append({"prepared": prepared, **first})
            watch.close()
    times |= best(runs)
    with BackgroundServer(Site(contents)) as running:
        watch = Stopwatch(browser, f"{running.address}#view=text")
        times["first_hover"] = first_hover(watch.page)
        watch.close()
        watch = Stopwatch(browser, f"{running.address}#view=heads")
        times["heads_first"] = watch.wait_for(SOME_SCORES)
        times["heads_all"] = watch.wait_for(ALL_SCORES)
        watch.close()
    return times


WHOLE = "() => document.querySelector('.map-stage .progress-panel')?.hidden"
POINTED_AT = """(token) => {
  const look = () => {
    if (token.classList.contains("at")) setTimeout(() => (window.shaded = performance.now()));
    else requestAnimationFrame(look);
  };
  token.onpointerover = () => {
    window.pointed ??= performance.now();
    look();
  };
}"""
TITLE = "document.querySelector('#view-heads .score-matrix h2')?.textContent ?? 'Scoring'"
SOME_SCORES = f"() => !({TITLE}).startsWith('Scoring')"
ALL_SCORES = "() => document.querySelector('#view-heads .progress-panel').hidden"


def read_long_text(times: dict[str, Any]) -> Capture:
    from regard.cli.parts.model import Model

    model = Model.open("smollm2")
    text = "".join(path.read_text("utf-8") for path in sorted((ROOT.parent / "docs").glob("*.md")))
    text = model.tokenizer.decode(model.encode(text)[:TOKENS])
    start = time.perf_counter()
    seen = model.read(text)
    times["capture"] = time.perf_counter() - start
    return seen


def load_capture(folder: Path) -> Capture:
    from regard.recorder import load

    seen = load(folder)
    assert isinstance(seen, Capture)
    return seen


def first_hover(page: Any) -> float:
    """The seconds from pointing at a token, as soon as there are some, to its shading, both in the page."""
    token = page.locator("#view-text .tok").nth(200)
    token.wait_for(timeout=WAIT)
    token.evaluate(POINTED_AT)
    token.hover()
    page.wait_for_function("() => window.shaded", timeout=WAIT)
    return float(page.evaluate("window.shaded - window.pointed")) / 1000


def table(result: dict[str, Any]) -> str:
    """The figures for docs/inspector.md."""
    rows = {row["what"]: row for row in result["rows"]}
    lines = ["| waiting for | seconds |", "|---|---:|"]

    def add(words: str, what: str, field: str) -> None:
        if what in rows and field in rows[what]:
            seconds = rows[what][field]
            lines.append(f"| {words} | {seconds:.2g} |" if seconds < 10 else f"| {words} | {seconds:.0f} |")

    add("the page's frame on a line of 50 kB/s with 400 ms of latency", "slow line", "first_view")
    add("the first map on that line", "slow line", "first_map")
    for way in ("served", "saved"):
        add(f"the first map of 32 × 32 heads, {way}", f"1,024 heads, {way}", "first_map")
        add(f"the pictures of all 1,024 heads, {way}", f"1,024 heads, {way}", "every_picture")
    for view in ("head_view", "model_view"):
        add(f"BertViz to write its {view} of these heads", f"1,024 heads, BertViz {view}", "written")
    long = "SmolLM2 on a long text"
    add("the choice of the first head of SmolLM2, at the end of the capture", long, "prepared")
    add(f"the first map of SmolLM2 on {TOKENS:,} tokens, after the capture", long, "first_map")
    add("the first token pointed at in Text", long, "first_hover")
    add("the scores of the first layer in Heads", long, "heads_first")
    add("the scores of all layers", long, "heads_all")
    about = result["machine"]
    words = (
        "Seconds that a reader waits, from opening the page in Chromium, in one run of `python -m "
        f"benchmarks.page_loading` ({about['cpu']}, {about['threads']} threads, load {result['load']:.0f}, "
        f"PyTorch {about['torch']}, {result['date']}). BertViz draws nothing without its CDN, and for the "
        "long text it would have to write 16 billion weights."
    )
    return "\n".join([*textwrap.wrap(words, 120), "", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", choices=["line", "heads", "text"], nargs="+", default=["line", "heads", "text"]
    )
    parser.add_argument(
        "--capture", type=Path, help="a saved capture of the long text, instead of reading it"
    )
    parser.add_argument("--out", type=Path, help="folder of the JSON file (default: benchmarks/results/)")
    parser.add_argument("--table", action="store_true", help="only update the table in docs/inspector.md")
    args = parser.parse_args()
    if args.table:
        newest = sorted((ROOT / "results").glob("page-loading-cpu-*.json"))[-1]
        update_docs(table(json.loads(newest.read_text("utf-8"))), MARKERS)
        return
    sys.path.append(str(ROOT.parent / "tests" / "browser"))  # the tests know where a Chromium is
    import chromium
    from playwright.sync_api import sync_playwright

    load = os.getloadavg()[0]
    rows: list[dict[str, Any]] = []
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(
            executable_path=chromium.find(), args=["--no-sandbox", "--disable-gpu"]
        )
        measured: dict[str, Callable[[], Any]] = {
            "line": partial(slow_line, browser),
            "heads": partial(many_heads, browser, Path(folder)),
            "text": partial(long_text, browser, args.capture),
        }
        for name in args.only:
            found = measured[name]()
            rows += found if isinstance(found, list) else [found]
            print("\n".join(str(row) for row in rows[-4:]), flush=True)
        browser.close()
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    out = (args.out or ROOT / "results") / f"page-loading-cpu-{today}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    result = {"date": today, "machine": machine("cpu"), "load": load, "rows": rows}
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {out}; --table updates docs/inspector.md from it")


if __name__ == "__main__":
    main()
