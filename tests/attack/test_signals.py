"""The attack with few draws, the first of them on the command itself. A failure names its seed and draw."""

from __future__ import annotations

import sys

import pytest

from tests.attack import signals


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_no_signal_leaves_anything_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "COMMANDS", 1000)
    figures = signals.attack(draws=4, seed=0)
    assert figures["processes left"] == figures["folders left"] == 0
