"""A short version of the attack on captures."""

from tests.attack.capture import attack


def test_every_capture_holds_its_own_text_and_weights() -> None:
    assert attack(draws=3, seed=0)["captures"] > 10
