"""Signals that stop a run: the first is a request, its echo changes nothing, a later one interrupts."""

from __future__ import annotations

import signal
import sys
from types import FrameType

import pytest

from regard.support import processes
from regard.support.processes import SIGNALS, stop_on_signal
from tests.patience import HANGING


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_comes_twice_is_one_request(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_on_signal() as stop:
        assert not stop.is_set()
        signal.raise_signal(number)
        signal.raise_signal(number)
        assert stop.is_set()
    assert signal.getsignal(number) is before


def test_a_signal_at_any_line_of_the_handler_does_not_hang() -> None:
    """An event of `threading` did: it takes its lock again in the handler that interrupts the handler."""

    def give_up(number: int, frame: object) -> None:
        raise TimeoutError("a signal in the handler of a signal hangs")

    before, traced = signal.signal(signal.SIGALRM, give_up), sys.gettrace()
    signal.setitimer(signal.ITIMER_REAL, HANGING)
    try:
        lines = [_signal_twice(line) for line in range(40)]
    finally:
        sys.settrace(traced)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert 2 < max(lines) < 40, "the second signal came at every line of the handler of the first"


def _signal_twice(line: int) -> int:
    """Send a signal at the n-th line of the handler of the same signal; the number of its lines."""
    seen = 0

    def trace(frame: FrameType, event: str, argument: object) -> object:
        nonlocal seen
        if seen == line:
            signal.raise_signal(signal.SIGINT)
        seen += 1
        return trace

    with stop_on_signal() as stop:
        sys.settrace(trace)
        signal.raise_signal(signal.SIGINT)
        sys.settrace(None)
        assert stop.is_set()
    return seen


def test_a_later_one_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "SECONDS_OF_ONE_REQUEST", 0.0)
    with stop_on_signal():
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


def test_what_is_ignored_stays_ignored() -> None:
    """As SIGHUP is under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signal() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)
