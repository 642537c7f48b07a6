"""The attack on long runs, with few draws: one of each kind, on training or on survey."""

from __future__ import annotations

from tests.attack.runs import ATTACKS, attack


def test_runs_withstand_an_attack() -> None:
    figures = attack(draws=len(ATTACKS), seed=0)
    assert figures["processes left"] == 0
