"""The progress of a training run: a bar in a terminal, a line from time to time elsewhere.

This file only prints; it does not influence the run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from regard.support.characters import escape

SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Prints the progress of a run. `total` and `done` are in steps, or in seconds for a run by the clock."""

    def __init__(self, total: float, done: float = 0.0, quiet: bool = False) -> None:
        self.total, self.quiet = total, quiet
        self._started, self._done_before = time.perf_counter(), done
        self._last_line = 0.0
        self._bar: Any = None
        # A bar in a log file would be thousands of lines.
        if not quiet and sys.stderr.isatty():
            self._bar = _start_bar(total, done)

    def show(self, done: float, step: int, loss: float, speed: float) -> None:
        """Show the newest figures: the loss in nats per token, the speed in tokens per second."""
        figures = f"loss {loss:.4f}  {speed:,.0f} tokens/s"
        now = time.perf_counter()
        if self._bar is not None:
            with self._silent_without_terminal():
                self._bar.update(
                    self._bar.task_ids[0], completed=min(done, self.total), figures=figures, step=step
                )
        elif not self.quiet and now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            elapsed = now - self._started
            rate = (done - self._done_before) / elapsed if elapsed > 0 else 0.0
            remaining = max(0.0, self.total - done) / rate if rate > 0 else 0.0
            self.print(f"step {step}  {figures}  {clock(remaining)} left")

    def print(self, text: str) -> None:
        """Print a text, above the bar if there is one."""
        if self.quiet:
            return
        text = escape(text)  # a sample may hold anything
        with self._silent_without_terminal():
            if self._bar is not None:
                self._bar.console.print(text, markup=False, highlight=False)
            else:
                print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            with self._silent_without_terminal():
                self._bar.stop()
            self._bar = None

    @contextmanager
    def _silent_without_terminal(self) -> Iterator[None]:
        """Print nothing any more if the terminal or the pipe is gone: the run goes on, or saves and ends."""
        try:
            yield
        # OSError: EIO once the terminal has been closed, EPIPE once the pipe's reader has ended.
        except OSError:
            self.quiet, self._bar = True, None


def clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss.

    >>> clock(75), clock(3675)
    ('1:15', '1:01:15')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _start_bar(total: float, done: float) -> Any:
    """A bar in the terminal; None without Rich, which training does without on a machine that lacks it."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
    except ImportError:
        return None
    columns = (TextColumn("step {task.fields[step]}"), BarColumn(), TextColumn("{task.fields[figures]}"))
    bar = Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True))
    # int: Rich's type for a finished part, though it computes with floats.
    bar.add_task("training", total=total, completed=int(done), figures="", step=0)
    bar.start()
    return bar
