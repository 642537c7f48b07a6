"""The progress of a training run: a line from time to time. This file only prints."""

from __future__ import annotations

import sys
import time

from regard.support.characters import escape

SECONDS_BETWEEN_LINES = 10.0
SECONDS_IN_TERMINAL = 2.0


class Progress:
    """Prints the progress of a run. `total` and `done` are in steps, or in seconds for a run by the clock."""

    def __init__(self, total: float, done: float = 0.0, quiet: bool = False) -> None:
        self.total, self.quiet = total, quiet
        self._started, self._done_before = time.perf_counter(), done
        self._pause = SECONDS_IN_TERMINAL if sys.stderr.isatty() else SECONDS_BETWEEN_LINES
        self._last_line = 0.0

    def show(self, done: float, step: int, loss: float, speed: float) -> None:
        """Show the newest figures: the loss in nats per token, the speed in tokens per second."""
        now = time.perf_counter()
        if now - self._last_line < self._pause:
            return
        self._last_line = now
        elapsed = now - self._started
        rate = (done - self._done_before) / elapsed if elapsed > 0 else 0.0
        remaining = max(0.0, self.total - done) / rate if rate > 0 else 0.0
        self.print(f"step {step}  loss {loss:.4f}  {speed:,.0f} tokens/s  {clock(remaining)} left")

    def print(self, text: str) -> None:
        """Print a text. Without its terminal or pipe, the run goes on, or saves and ends, in silence."""
        if self.quiet:
            return
        try:
            print(escape(text), file=sys.stderr, flush=True)  # a sample may hold anything
        # OSError: EIO once the terminal has been closed, EPIPE once the pipe's reader has ended.
        except OSError:
            self.quiet = True


def clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss.

    >>> clock(75), clock(3675)
    ('1:15', '1:01:15')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
