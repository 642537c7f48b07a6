"""`regard inspect`: a page that shows what every head of a model attends to."""

from __future__ import annotations

import atexit
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import MODELS, Files, Texts
from regard.escapes import escape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from regard.cli.model import Model
    from regard.recorder import Capture

OPENING = 240  # characters of a text that a recorded generation begins with, at most
PATIENCE = 3.0  # seconds that it may take


def inspect(
    captures: Annotated[
        list[Path] | None,
        typer.Argument(metavar="CAPTURE", help="Saved captures to show instead of a model."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help=MODELS,
            show_default="default",
        ),
    ] = None,
    text: Texts = None,
    file: Files = None,
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="FOLDER", help="Folder of a training run, for the time slider."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.html", help="Write the page to one file instead of serving it."),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", metavar="N", help="Port to serve the page on. 0 takes a free one.")
    ] = 0,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="ADDRESS",
            help="Address to serve the page on. The page needs the secret in the printed address.",
        ),
    ] = "127.0.0.1",
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
) -> None:
    """Show what every head of a model attends to, on a page in the browser or in one file.

    Without arguments, the included model reads a built-in text. The page is served to this machine only,
    to those who have the printed address, until Ctrl-C.

    \b
    Examples:
      regard inspect
      regard inspect --model smollm2 --file letter.txt
      regard inspect --model Qwen/Qwen3-0.6B --text "The cat sat. The cat ate."
      regard inspect --model trained --run trained
      regard inspect --out page.html
      regard inspect capture-folder
    """
    from rich.console import Console

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if captures and (model or text or file):
        raise ValueError("expected captures to show or a model to read with (--model, --text), not both")
    if out is not None and not out.parent.is_dir():
        raise ValueError(f"--out: there is no folder {str(out.parent)!r}: make it first")
    texts = _texts(text or [], file or [])
    if captures:
        opened, seen, titles = None, [_loaded(path) for path in captures], [path.name for path in captures]
    else:
        opened = _opened(console, model or "default")
        seen = [_read(console, opened, words) for _, words in texts]
        titles = [title for title, _ in texts]
    from regard.gpt.training.history import read_run
    from regard.show.data.contents import Contents

    folder = run or (opened.run if opened else None)
    history = None if folder is None else read_run(folder)
    with console.status("Scoring the heads …"):
        contents = Contents(seen, titles=titles, time=history, start="auto")
    if out is not None:
        if opened is not None and opened.can_generate:
            contents.generation = _written(console, opened, texts[0][1])
        _write(console, contents, out)
        _glimpse(contents)
        typer.echo(f"Open {escape(str(out))} in any browser: it needs no server and no network.")
        return
    _serve(contents, opened, host, port, open_)


def _texts(given: list[str], files: list[Path]) -> list[tuple[str, str]]:
    """What is read, each with its title; the built-in text if nothing was given."""
    from regard.cli.demo_text import STORY, TITLE
    from regard.gpt.training.corpus import read

    found = [(_title(text), text) for text in given] + [(path.name, read(path)) for path in files]
    for title, words in found:
        if not words.strip():
            raise ValueError(f"text: expected some text to read, and {title!r} is empty")
    return found or [(TITLE, STORY)]


def _title(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 48 else words[:47].rstrip() + "…"


def _loaded(path: Path) -> Capture:
    from regard.recorder import Capture, load

    found = load(path)
    if not isinstance(found, Capture):
        raise ValueError(f"{path}: expected a capture, a folder that seen.save(…) wrote, got one map")
    return found


def _opened(console: Any, name: str) -> Model:
    from rich.text import Text

    from regard.cli.model import Model

    with console.status(Text(f"Opening {escape(name)} …")):
        return Model.open(name)


def _read(console: Any, opened: Model, text: str) -> Capture:
    from rich.progress import Progress

    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("Reading", total=None)

        def tell(doing: str, done: int, of: int) -> None:
            bar.update(task, description=doing.capitalize(), completed=done, total=of or None)

        return opened.read(text, tell)


def _written(console: Any, opened: Model, text: str) -> list[Mapping[str, object]]:
    """A few tokens with and without a cache, measured now: the page that is written will have no model."""
    began = time.perf_counter()
    lines: list[Mapping[str, object]] = []
    start = text.strip()[:OPENING].partition(". ")[0]
    with console.status("Writing a few tokens …"):
        for line in opened.generate(start, tokens=24, window=64, sinks=4):
            lines.append(line)
            if time.perf_counter() - began > PATIENCE:
                break
    return lines


def _write(console: Any, contents: Any, out: Path) -> None:
    from regard.show.saved.bundle import write

    began = time.perf_counter()
    with console.status("Writing the page …"):
        write(contents, out)
    size, seconds = out.stat().st_size / 1e6, time.perf_counter() - began
    console.print(f"{escape(str(out))}: {size:.1f} MB, written in {seconds:.1f} s", markup=False)


def _glimpse(contents: Any) -> None:
    """The head that the page begins with, in the terminal."""
    from rich.console import Console

    from regard.show.terminal import print_map

    if contents.start is None:
        return
    layer, head = contents.start
    row = next(row for row in contents.heads(0) if (row["layer"], row["head"]) == contents.start)
    score = row["scores"]["induction"]
    console = Console(highlight=False)
    console.print(f"\nLayer {layer}, head {head}: queries run down, keys run across.", markup=False)
    print_map(console, contents.head_map(0, layer, head).map[0, 0])
    console.print(
        f"It puts {score['value']:.0%} of its attention on what came after earlier copies of the token; "
        f"uniform attention would put {score['null']:.0%} there.\n",
        markup=False,
        soft_wrap=True,
    )


def _serve(contents: Any, opened: Model | None, host: str, port: int, open_: bool) -> None:
    from regard.show.server.app import Site
    from regard.show.server.background import BackgroundServer
    from regard.show.server.guard import is_loopback
    from regard.show.viewer import open_browser

    read = opened.read if opened else None
    generate = opened.generate if opened and opened.can_generate else None
    run_cut = opened.run_cut if opened else None
    running = BackgroundServer(Site(contents, read, generate, run_cut), host=host, port=port)
    typer.echo(running.address)
    if not is_loopback(host):
        typer.echo("Anyone with this whole address can read the texts on the page, from other machines too.")
    typer.echo("Ctrl-C ends it.")
    if open_:
        open_browser(running.bound_address.ticket_address)
    code = 0
    try:
        running.run()
    except SystemExit as end:  # a signal
        code = int(end.code or 0)
    _leave(code)


def _leave(code: int) -> None:
    """Exit at once: Python would wait for threads whose results are no longer needed."""
    atexit._run_exitfuncs()  # what was kept in temporary folders goes
    sys.stdout.flush()
    os._exit(code)
