"""What is seen while a model trains: a bar in a terminal, plain lines elsewhere.

A run stays the same whoever watches. Rich draws the bar; without it, or in a log file, a line comes now and
then.
"""

from __future__ import annotations

import sys
import time
from typing import Any

SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """How far a run is. `total` is in steps, or in seconds for a run that is measured in time."""

    def __init__(self, total: float, done: float = 0.0, quiet: bool = False) -> None:
        self.total, self.quiet = total, quiet
        self._began, self._before = time.perf_counter(), done
        self._last_line = 0.0
        self._bar: Any = None
        if not quiet and sys.stderr.isatty():
            self._bar = _bar(total, done)

    def show(self, done: float, step: int, loss: float, speed: float) -> None:
        """The newest figures: loss in nats a token, speed in tokens a second."""
        figures = f"loss {loss:.4f}  {speed:,.0f} tokens/s"
        now = time.perf_counter()
        if self._bar is not None:
            self._bar.update(
                self._bar.task_ids[0], completed=min(done, self.total), figures=figures, step=step
            )
        elif not self.quiet and now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            spent = now - self._began
            rate = (done - self._before) / spent if spent > 0 else 0.0
            left = max(0.0, self.total - done) / rate if rate > 0 else 0.0
            self.say(f"step {step}  {figures}  {clock(left)} left")

    def say(self, text: str) -> None:
        """A line that stays, above the bar."""
        if self.quiet:
            return
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss.

    >>> clock(75), clock(3675)
    ('1:15', '1:01:15')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _bar(total: float, done: float) -> Any:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
    except ImportError:
        return None
    columns = (TextColumn("step {task.fields[step]}"), BarColumn(), TextColumn("{task.fields[figures]}"))
    bar = Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True))
    bar.add_task("training", total=total, completed=int(done), figures="", step=0)
    bar.start()
    return bar
