"""A short version of the attack on captures."""

import pytest

from tests.attack.capture import attack


@pytest.mark.at_length("test_two_threads_at_once_in_one_capture_are_refused")
def test_every_capture_holds_its_own_text_and_weights() -> None:
    assert attack(draws=3, seed=0)["captures"] > 10
