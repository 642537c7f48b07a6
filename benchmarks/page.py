"""The saved page beside BertViz's, for the same attention in one run: time, size, memory, first picture.

    pip install --no-deps --target bertviz-here bertviz ipython decorator traitlets
    PYTHONPATH=bertviz-here python -m benchmarks.page
    python -m benchmarks.page --table    only updates the table in docs/inspector.md

The attention is that of a model of GPT-2 small's sizes with random weights on random tokens. Measured are
the time from the attention to a file on disk, and from opening it in Chromium to a picture. BertViz's page
loads its scripts from a CDN, so that it stays empty offline. Writes a dated JSON to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import machine, peak_mib
from benchmarks.panning import drag, median
from regard import attention_map, capture, causal
from regard.gpt import GPT, Config
from regard.recorder import Capture, Evidence, Layer
from regard.show.data.contents import Contents
from regard.show.saved.bundle import write
from regard.show.server.app import Site
from regard.show.server.background import BackgroundServer

ROOT = Path(__file__).parent
MARKERS = "<!-- page: begin -->", "<!-- page: end -->"
HINT = "pip install --no-deps --target bertviz-here bertviz ipython decorator traitlets"
PICTURE = """() => {
  const canvas = document.querySelector(".map-stage canvas");
  if (!canvas || !canvas.width) return false;
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const colours = new Set();
  for (let i = 0; i < pixels.length; i += 404) colours.add(pixels.slice(i, i + 3).join());
  return colours.size > 24;
}"""


def gpt2_small() -> GPT:
    """A model of GPT-2 small's sizes, whose attention is as sharp as that of a trained model."""
    torch.manual_seed(0)
    model = GPT(
        Config(vocab_size=50257, context_length=1024, num_layers=12, num_heads=12, d_model=768, qkv_bias=True)
    )
    with torch.no_grad():
        for block in model.blocks:
            block.attention.qkv.weight *= 4
    return model.eval()


def measure(make: Callable[[], bytes | None], path: Path) -> dict[str, Any]:
    """The seconds, peak memory and size of a page that `make` writes to `path`, or returns."""
    wall_times: list[float] = []
    cpu_times: list[float] = []

    def call() -> None:
        start, cpu_start = time.perf_counter(), time.process_time()
        html = make()
        if html is not None:
            path.write_bytes(html)
        wall_times.append(time.perf_counter() - start)
        cpu_times.append(time.process_time() - cpu_start)

    peak = peak_mib(call, "cpu")
    urls = {url for url in re.findall(rb"https?://[\w.-]+", path.read_bytes()) if b"w3.org" not in url}
    return {
        "seconds": wall_times[0],
        "cpu_seconds": cpu_times[0],
        "megabytes": path.stat().st_size / 1e6,
        "peak_mib": peak,
        "asks_elsewhere": bool(urls),
    }


def peak_in_new_process(T: int) -> float:
    """The peak memory of writing Regard's page in a process of its own, the worst of three.

    In this process it could hide in memory that was freed before and not returned to the system.
    """
    command = [sys.executable, "-m", "benchmarks.page", "--memory", str(T)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def print_memory(T: int) -> None:
    seen = capture(gpt2_small(), inputs={"input_ids": torch.randint(0, 50257, (1, T))}, values=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        print(max(peak_mib(lambda: write(seen, path), "cpu") for _ in range(3)))


def pages(model: GPT, T: int, folder: Path, browser: Any) -> list[dict[str, Any]]:
    ids = torch.randint(0, 50257, (1, T))
    start = time.perf_counter()
    seen = capture(model, inputs={"input_ids": ids}, values=True)
    captured = time.perf_counter() - start
    tokens = [f" tok{number}" for number in ids[0].tolist()]
    seen.tokens = [tokens]
    path = folder / f"regard-{T}.html"
    rows = [{"who": "Regard", "T": T, "capture": captured, **measure(lambda: _none(write(seen, path)), path)}]
    rows[0] |= {"precision": _precision(seen), "peak_mib": peak_in_new_process(T)}
    if browser is not None:
        rows[0]["first_picture"] = first_picture(browser, path)
    dense = [layer.to_dense() for layer in seen]
    path = folder / f"bertviz-{T}.html"
    for name, view in bertviz_views().items():
        make = partial(_bertviz, view, dense, tokens)
        rows.append({"who": f"BertViz {name}", "T": T, **measure(make, path)})
        path.unlink()
    return rows


def _bertviz(view: Callable[..., Any], attention: list[torch.Tensor], tokens: list[str]) -> bytes:
    html: str = view(attention, tokens, html_action="return").data
    return html.encode()


def _none(_: object) -> None:
    return None


def _precision(seen: Capture) -> float:
    from regard.show.saved.pack import pack

    return pack(Contents(seen), values=False).relative


def bertviz_views() -> dict[str, Callable[..., Any]]:
    try:
        from bertviz import head_view, model_view
    except ImportError as error:
        print(f"BertViz is not installed ({error}) and is left out: {HINT}", file=sys.stderr)
        return {}
    return {"head_view": head_view, "model_view": model_view}


def first_picture(browser: Any, path: Path) -> float:
    """The seconds from opening the file to a picture on the canvas, the best of three."""
    seconds = []
    for _ in range(3):
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        start = time.perf_counter()
        page.goto(path.as_uri(), wait_until="commit")
        page.wait_for_function(PICTURE, polling="raf", timeout=120_000)
        seconds.append(time.perf_counter() - start)
        page.close()
    return min(seconds)


def long_map(browser: Any, T: int = 16_384) -> dict[str, Any]:
    """The milliseconds between frames while a served map of T tokens is dragged."""
    q, k = torch.randn(1, 2, T, 16), torch.randn(1, 1, T, 16)
    m = attention_map(q, k, mask=causal)
    evidence = Evidence(0.0, 1.0, 0.0, T, T, "causal", m.scale)
    seen = Capture([Layer(0, "attention", "", m, evidence, (0, 1))], "random", None, [["t"] * T])
    with BackgroundServer(Site(Contents(seen))) as running:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(f"{running.address}#zoom=0.5&x=4000&y=9000")
        page.wait_for_function(PICTURE, polling="raf", timeout=120_000)
        times = [drag(page, ".map-stage canvas", 240) for _ in range(3)]
        page.close()
    best = min(times, key=median)
    slowest = sorted(best)[int(0.95 * len(best))]
    return {"who": "Regard, served", "T": T, "frame_ms": median(best), "frame_ms_95": slowest}


def table(result: dict[str, Any]) -> str:
    """The figures for docs/inspector.md."""
    rows = [row for row in result["rows"] if "megabytes" in row]
    lines = [
        "| | tokens | CPU time | size | memory | to the first picture | asks elsewhere |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        first = f"{row['first_picture']:.1f} s" if "first_picture" in row else "–"
        asks = "a CDN" if row["asks_elsewhere"] else "nobody"
        lines.append(
            f"| {row['who']} | {row['T']} | {row['cpu_seconds']:.1f} s | {row['megabytes']:,.0f} MB "
            f"| {max(row['peak_mib'], 1):,.0f} MiB | {first} | {asks} |"
        )
    machine = result["machine"]
    about = f"{machine['cpu']}, PyTorch {machine['torch']}, {result['date']}"
    off = max(row["precision"] for row in rows if "precision" in row)
    moving = [row for row in result["rows"] if "frame_ms" in row]
    words = (
        "From the attention of a GPT-2-small shape (12 layers of 12 heads of 64) to a page on disk, "
        f"both in one run of `python -m benchmarks.page` ({about}). BertViz "
        f"draws nothing without its CDN. The largest error of a weight in our file was {off:.1%}."
    )
    if moving:
        row = moving[-1]
        words += (
            f" Dragging a served map of {row['T']:,} tokens showed a frame every {row['frame_ms']:.0f} ms."
        )
    return "\n".join([*textwrap.wrap(words, 120), "", *lines])


def update_docs(written: str, markers: tuple[str, str]) -> None:
    """Write a table into docs/inspector.md, between its two markers."""
    path = ROOT.parent / "docs" / "inspector.md"
    before, begin, rest = path.read_text("utf-8").partition(markers[0])
    _, end, after = rest.partition(markers[1])
    path.write_text(f"{before}{begin}\n{written}\n{end}{after}", encoding="utf-8")


def newest() -> dict[str, Any]:
    """The newest result."""
    result: dict[str, Any] = json.loads(sorted((ROOT / "results").glob("page-cpu-*.json"))[-1].read_text())
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--out", type=Path, help="folder of the JSON file (default: benchmarks/results/)")
    parser.add_argument("--table", action="store_true", help="only update the table in docs/inspector.md")
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory:
        print_memory(args.memory)
        return
    if args.table:
        update_docs(table(newest()), MARKERS)
        return
    sys.path.append(str(ROOT.parent / "tests" / "browser"))  # the tests know where a Chromium is
    import chromium
    from playwright.sync_api import sync_playwright

    model = gpt2_small()
    rows: list[dict[str, Any]] = []
    path = chromium.find()
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = None
        if path is not None:
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        for T in args.lengths:
            rows += pages(model, T, Path(folder), browser)
        if browser is not None:
            rows.append(long_map(browser))
            browser.close()
    for row in rows:
        print("  ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    out = (args.out or ROOT / "results") / f"page-cpu-{today}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"date": today, "machine": machine("cpu"), "rows": rows}, indent=1) + "\n")
    print(f"wrote {out}; --table updates docs/inspector.md from it")


if __name__ == "__main__":
    main()
