"""Signals that stop a run: the first is a request, its echo changes nothing, a later one interrupts."""

from __future__ import annotations

import signal

import pytest

from regard.support import processes
from regard.support.processes import SIGNALS, stop_on_signal


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_comes_twice_is_one_request(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_on_signal() as stop:
        assert not stop.is_set()
        signal.raise_signal(number)
        signal.raise_signal(number)
        assert stop.is_set()
    assert signal.getsignal(number) is before


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
