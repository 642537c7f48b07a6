"""Signals to a command: it ends as after an error, and the exit code says which one it was."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from regard.cli import data, main
from regard.cli.parts.signals import unwind_on_signals
from regard.support.files import atomic_write


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_was_being_written_is_removed(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(name: str) -> None:
        with atomic_write(tmp_path / "page.html") as file:
            file.write_text("half of a page")
            try:
                os.kill(os.getpid(), number)
            finally:
                os.kill(os.getpid(), number)  # `timeout` sends it twice

    monkeypatch.setattr(data, "fetch", fetch)
    monkeypatch.setattr(sys, "argv", ["regard", "data", "smollm2"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_a_later_signal_ends_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    raised = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    with unwind_on_signals():
        with pytest.raises(SystemExit, match="143"):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert raised == []
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + 2)
        os.kill(os.getpid(), signal.SIGTERM)
        assert raised == [signal.SIGTERM]


def test_an_ignored_hangup_stays_ignored() -> None:
    """`nohup` ignores it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with unwind_on_signals():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN)
    finally:
        signal.signal(signal.SIGHUP, before)
