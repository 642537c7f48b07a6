"""What commands print: the report of a verdict with its exit code, and progress on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from regard.support.characters import escape

EXIT_CODES = {"right": 0, "wrong": 1, "undecided": 3}  # 2: it could not be run


@contextmanager
def allow_closed_pipe() -> Iterator[None]:
    """A block that prints to a reader that may stop, as `head` does: the exit code stays the command's."""
    try:
        yield
        # Here and not at the end of the process, where a broken pipe would print "Exception ignored in".
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # Rich turns the first into SystemExit(1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor may the last flush fail


def end_with(report: Any, code: int, as_json: bool) -> NoReturn:
    """Print a report, which has a `to_json`, and end the command with an exit code."""
    with allow_closed_pipe():
        typer.echo(escape(report.to_json()) if as_json else str(report))
    raise typer.Exit(code)


@contextmanager
def progress_bar(console: Any, label: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar with a label; the function that is yielded takes how much is done, and of how much."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def show_steps(console: Any, *, lines: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Show what a command is doing, with the time since its start; elsewhere than in a terminal as `lines`.

    The function that is yielded takes what is done, how much of it, and of how much: 0 if that is not known.
    """
    # markup=False: the names of models and files may hold brackets.
    columns = (TextColumn("{task.description} …", markup=False), BarColumn(), TimeElapsedColumn())
    lines = lines and not console.is_terminal
    step = ""
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def tell(doing: str, done: int = 0, of: int = 0) -> None:
            nonlocal step
            doing = escape(doing[0].upper() + doing[1:])
            bar.update(task, description=doing, completed=done, total=of or None)
            if lines and doing != step:
                console.print(f"{doing} …", markup=False)
            step = doing

        tell("starting")
        yield tell
