"""Signals that ask a long run to stop: it saves its progress first."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
SECONDS_OF_ONE_REQUEST = 1.0
"""`timeout` and `torchrun` send a signal twice, to the process and to its group: that is one request."""


@contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C, SIGTERM or SIGHUP sets; a later one raises a KeyboardInterrupt.

    A signal that the process ignores, as under `nohup`, stays ignored. Outside of the main thread, which
    alone receives signals, the event is never set.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    requested_at = 0.0

    def handle(number: int, frame: object) -> None:
        nonlocal requested_at
        if not stop.is_set():
            requested_at = time.monotonic()
            stop.set()
        elif time.monotonic() - requested_at > SECONDS_OF_ONE_REQUEST:
            raise KeyboardInterrupt

    heard = [number for number in SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    previous = {number: signal.signal(number, handle) for number in heard}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
