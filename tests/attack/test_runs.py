"""The attack on long runs, with few draws: one of each kind, on training or on survey."""

from __future__ import annotations

import pytest

from tests.attack.runs import ATTACKS, attack


@pytest.mark.at_length("test_kills_change_nothing")
def test_runs_withstand_an_attack() -> None:
    figures = attack(draws=len(ATTACKS), seed=0)
    assert figures["processes left"] == 0
