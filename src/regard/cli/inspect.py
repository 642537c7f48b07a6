"""`regard inspect`: a page that shows what every head of a model attends to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import typer
from rich.console import Console

from regard.cli.parts.demo_text import STORY, TITLE
from regard.cli.parts.model import Model
from regard.cli.parts.output import show_steps
from regard.cli.parts.page_server import serve
from regard.gpt import GPT
from regard.gpt.training.corpus import read
from regard.gpt.training.history import read_run
from regard.heads import read_survey
from regard.heads.tables.score_words import title as score_title
from regard.monitor.page_curves import read_curves
from regard.recorder import Capture, load
from regard.show.data.contents import Contents
from regard.show.data.lookup import record_lookup
from regard.show.data.titles import title_of_text
from regard.show.saved.bundle import write
from regard.show.saved.kept_heads import keep_telling_heads
from regard.show.saved.model_block import check_model
from regard.show.saved.pack import estimate_size
from regard.show.server.app import Site
from regard.show.server.jobs import ReportProgress
from regard.show.terminal import print_map
from regard.support.characters import escape
from regard.support.files import check_target

OPENING = 240  # characters of a text that a recorded generation begins with, at most
PATIENCE = 10.0  # seconds that it may take
LARGE = 20_000_000  # bytes of a page whose size is said before it is written


class Prepared(NamedTuple):
    """What the page shows: captures, the model that reads more texts, and one that goes into the file."""

    contents: Contents
    opened: Model | None
    inside: GPT | None


def inspect(
    *,
    captures: list[Path] | None,
    model: str | None,
    text: list[str] | None,
    file: list[Path] | None,
    run: Path | None,
    survey: Path | None,
    out: Path | None,
    with_model: bool,
    exact: bool,
    port: int,
    host: str,
    open_: bool,
) -> None:
    """Show what every head of a model attends to, on a page in the browser or in one file."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if captures and (model or text or file):
        raise ValueError("expected captures to show or a model to read with (--model, --text), not both")
    # Checked before the model is opened, which may take minutes.
    if out is not None:
        check_target("--out", out)
    if with_model and (out is None or captures):
        raise ValueError("--with-model: expected it with --out FILE.html and a model, as in --out page.html")
    if exact and out is None:
        raise ValueError("--exact: expected it with --out FILE.html, as in --out page.html")

    def prepare(report: ReportProgress) -> Prepared:
        if captures:
            opened, inside, seen = None, None, [_loaded(path) for path in captures]
            titles = [path.name for path in captures]
        else:
            name = model or "default"
            # A total of 0 says that it is not known.
            report("opening the included model" if name == "default" else f"opening {name}", 0, 0)
            opened = Model.open(name)
            inside = check_model(opened.module) if with_model else None
            seen = [_read(opened, texts, number, report) for number in range(len(texts))]
            titles = [title for title, _ in texts]
        folder = run or (opened.run if opened else None)
        history = None if folder is None else _history(folder)
        if history and run is None:
            history["name"] = ""  # the model's own run, which is named by the model
        report("scoring the heads", 0, 0)
        contents = Contents(seen, titles=titles, time=history, survey=found)
        contents.prepare_first_view()
        return Prepared(contents, opened, inside)

    began = time.monotonic()
    with show_steps(console, lines=out is not None) as show:
        texts = _texts(text or [], file or [])
        found = None if survey is None else read_survey(survey)
        if out is not None:
            prepared = prepare(show)
            _complete(prepared, texts[0][1], show)
            contents = _write(console, prepared, out, exact, show)
    if out is None:
        serve(lambda report: _prepare_site(console, prepare, report), host=host, port=port, open_=open_)
        return
    size, seconds = out.stat().st_size / 1e6, time.monotonic() - began
    console.print(f"{escape(str(out))}: {size:.1f} MB, made in {seconds:.0f} s", markup=False)
    _glimpse(contents)
    typer.echo(f"Open {escape(str(out))} in any browser: it needs no server and no network.")


def _prepare_site(
    console: Any, prepare: Callable[[ReportProgress], Prepared], report: ReportProgress
) -> Site:
    """Prepare what is served; its steps are shown in a terminal, too, while the page waits."""

    def report_both(doing: str, done: int, of: int) -> None:
        show(doing, done, of)
        report(doing, done, of)

    with show_steps(console, lines=False) as show:
        return _site(prepare(report_both))


def _complete(prepared: Prepared, text: str, show: ReportProgress) -> None:
    """Add what a served page asks the model for when a reader wants it: a written one has to hold it."""
    contents, opened, inside = prepared
    if opened is not None and opened.can_generate:
        show("writing a few tokens", 0, 0)
        contents.generation = _written(opened, text, contents)
    show("measuring cache policies", 0, 0)
    contents.record_retention()
    if opened is not None and opened.predicts and inside is None:
        show("turning heads off", 0, 0)
        contents.lookup = record_lookup(contents, opened.run_cut)
        contents.forget_meta()


def _history(path: Path) -> dict[str, Any]:
    """What the Time view shows: the folder of a training run, or the file of a monitor."""
    return read_curves(path) if path.is_file() else read_run(path)


def _texts(given: list[str], files: list[Path]) -> list[tuple[str, str]]:
    """What is read, each with its title; the built-in text if nothing was given."""
    found = [(title_of_text(text), text) for text in given]
    found += [(path.name, read(path, "file")) for path in files]
    for title, words in found:
        if not words.strip():
            raise ValueError(f"text: expected some text to read, and {title!r} is empty")
    return found or [(TITLE, STORY)]


def _loaded(path: Path) -> Capture:
    found = load(path)
    if not isinstance(found, Capture):
        raise ValueError(f"{path}: expected a capture, a folder that seen.save(…) wrote, got one map")
    return found


def _read(opened: Model, texts: list[tuple[str, str]], number: int, report: ReportProgress) -> Capture:
    """Read one of the texts, and report how far it is."""
    name = "the text" if len(texts) == 1 else f"text {number + 1} of {len(texts)}"
    return opened.read(texts[number][1], lambda doing, done, of: report(f"{doing} {name}", done, of))


def _written(opened: Model, text: str, contents: Any) -> list[Mapping[str, object]]:
    """A few tokens with and without a cache, measured now: the page that is written will have no model.

    The text with these tokens is captured and added to the contents, so that the page can open it.
    """
    began = time.perf_counter()
    lines: list[Mapping[str, object]] = []
    ids: list[int] = []
    start = text.strip()[:OPENING].partition(". ")[0]
    for line in opened.generate(start, tokens=24):
        lines.append(line)
        if isinstance(step := line.get("step"), dict):
            ids.append(step["token_id"])
        # A large model on a slow machine: fewer tokens, rather than a command that seems to hang.
        if time.perf_counter() - began > PATIENCE:
            break
    if ids:
        generated = opened.read(start, continuation=ids)
        lines.append({"captured": contents.add(generated, "What the model wrote")})
    return lines


def _write(console: Any, prepared: Prepared, out: Path, exact: bool, show: ReportProgress) -> Contents:
    """Write the page, say what it leaves out, and return the contents that it has."""
    contents, _, model = prepared
    show("choosing the heads to keep", 0, 0)
    size = estimate_size(contents, exact)
    if model is None and not exact:
        contents = keep_telling_heads(contents)
    if contents.left_out:
        kept = sum(len(layer.heads) for layer in contents.texts[0].layers)
        whole = (
            f"With all {kept + len(contents.left_out)} heads the page would take about {size / 1e6:,.0f} MB."
        )
        smaller = f"about {estimate_size(contents) / 1e6:,.0f} MB; --exact keeps all."
        console.print(f"{whole} It keeps the {kept} that tell most, {smaller}", markup=False)
    elif model is None and size > LARGE:
        less = "a shorter text, or a capture of some heads (regard.capture's heads=), takes less"
        console.print(f"The page will take about {size / 1e6:,.0f} MB: {less}", markup=False)
    show("writing the page", 0, 0)
    write(contents, out, model=model, exact=exact)
    return contents


def _glimpse(contents: Contents) -> None:
    """The head that the page begins with, in the terminal."""
    if contents.start is None:
        return
    layer, head = contents.start
    row = next(row for row in contents[0].layer_heads(layer) if row["head"] == head)
    console = Console(highlight=False)
    label = f" ({score_title(row['label'])})" if row["label"] else ""
    console.print(f"\nLayer {layer}, head {head}{label}: queries run down, keys run across.", markup=False)
    print_map(console, contents[0].head_map(layer, head).map[0, 0])
    console.print(f"{escape(row['sentence'])}\n", markup=False, soft_wrap=True)


def _site(prepared: Prepared) -> Site:
    """What is served: the captures, and what the model can do."""
    contents, opened, _ = prepared
    if opened is None:
        return Site(contents)
    return Site(
        contents,
        opened.read,
        opened.generate if opened.can_generate else None,
        opened.run_cut,
    )
