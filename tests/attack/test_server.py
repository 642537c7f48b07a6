"""The short version of the attack on the page's server."""

from tests.attack import server


def test_guesses_large_bodies_and_drawn_requests_neither_stop_the_server_nor_open_it() -> None:
    assert server.attack(50, seed=14)["drawn requests"] == 50
