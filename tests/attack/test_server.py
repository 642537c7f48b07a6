"""The short version of the attack on the page's server."""

from tests.attack import server


def test_a_crowd_guesses_and_drawn_requests_neither_stop_the_server_nor_open_it() -> None:
    figures = server.attack(50, seed=14)
    assert figures["drawn requests"] == 50
    assert figures["silent: hostile connections"] == 330
