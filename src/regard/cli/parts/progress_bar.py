"""Progress on stderr: a bar for counted work, and the steps of a command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from regard.support.characters import escape


@contextmanager
def progress_bar(console: Any, label: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar with a label; the function that is yielded takes how much is done, and of how much."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def show_steps(console: Any, *, lines: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Show what a command is doing, with the time since its start; elsewhere than in a terminal as `lines`.

    The function that is yielded takes what is done, how much of it, and of how much: 0 if that is not known.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

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
