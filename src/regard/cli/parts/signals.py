"""What signals do to the command: each ends it, and the exit status says which one it was."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], None] | signal.Handlers
# Ctrl-C is not among them: Python raises KeyboardInterrupt for it already. Windows has no SIGHUP.
ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def unwind_on_signals() -> Iterator[None]:
    """A block which SIGTERM and SIGHUP end as an error would: temporary files are removed.

    The signals that follow within a second change nothing (`timeout` sends two); later ones end it at once.
    A signal that is ignored stays ignored: `nohup` is there for that.
    """
    first = float("inf")

    def unwind(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if time.monotonic() > first + 1.0:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        elif first == float("inf"):
            first = time.monotonic()
            # 128 + number is what a shell reports of a process that a signal ended.
            raise SystemExit(128 + number)

    # Only where the handler is the default: a program that embeds the command keeps its own.
    with _handlers({number: unwind for number in ENDING if signal.getsignal(number) == signal.SIG_DFL}):
        yield


@contextmanager
def end_on_signals() -> Iterator[None]:
    """A block in which SIGTERM, SIGHUP and Ctrl-C end the process at once, since nothing needs undoing."""
    numbers = [n for n in ENDING if signal.getsignal(n) != signal.SIG_IGN]
    # Without it, Ctrl-C would raise KeyboardInterrupt inside imports, and print a traceback.
    with _handlers({number: signal.SIG_DFL for number in (signal.SIGINT, *numbers)}):
        yield


@contextmanager
def allow_closed_pipe() -> Iterator[None]:
    """A block that prints to a reader that may stop, as `head` does: the exit code stays the command's."""
    try:
        yield
        # Here and not at the end of the process, where a broken pipe would print "Exception ignored in".
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # Rich turns the first into SystemExit(1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor may the last flush fail


@contextmanager
def _handlers(handlers: Mapping[int, Handler]) -> Iterator[None]:
    """A block with these signal handlers. Only the main thread can have any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
