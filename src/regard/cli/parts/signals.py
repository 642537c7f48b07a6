"""What signals do to the command: each ends it, and the exit status says which one it was."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

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

    # Only where the handler is the default: a program that embeds the command keeps its own. Only the main
    # thread can set any.
    is_main = threading.current_thread() is threading.main_thread()
    numbers = [n for n in ENDING if is_main and signal.getsignal(n) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, unwind)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
