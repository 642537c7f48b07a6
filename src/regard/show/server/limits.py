"""What the server allows, and how it says no: sizes, counts, one piece of heavy work at a time."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from regard.attention.arguments import check_whole_number


@dataclass(frozen=True)
class Limits:
    """Bounds on what a page may ask for."""

    body: int = 1 << 20
    """Bytes of a request."""
    characters: int = 200_000
    """Of a text that is to be read."""
    tokens: int = 16_384
    """Of a text that was read: a longer one is not kept."""
    texts: int = 16
    """That are held at once, the first ones included."""
    generated: int = 256
    """Tokens that are written for one request."""
    waiting: int = 256
    """Requests that wait for a worker."""
    workers: int = 2
    """Threads that compute."""


class RefusedError(Exception):
    """A request that is not served: a status of HTTP and a sentence for whoever asked."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class StoppedError(Exception):
    """Nobody waits for the work any more."""


class ExclusiveJob:
    """One piece of work at a time; whoever comes meanwhile is told what is being done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.doing = ""

    def take(self, doing: str) -> None:
        if not self._lock.acquire(blocking=False):
            raise RefusedError(409, f"the model is busy {self.doing}: try again when it is done")
        self.doing = doing

    def give_back(self) -> None:
        self.doing = ""
        self._lock.release()


def check_number(name: str, value: object, least: int, most: int) -> int:
    """A whole number within bounds, or a refusal that says so."""
    if isinstance(value, str) and value.removeprefix("-").isascii() and value.removeprefix("-").isdigit():
        value = int(value) if len(value) < 16 else value
    try:
        return check_whole_number(name, value, least, most)
    except ValueError as error:
        raise RefusedError(400, str(error)) from None


def text_of(value: object, limits: Limits) -> str:
    """A text that may be read, or a refusal that says why not."""
    if not isinstance(value, str) or not value.strip():
        raise RefusedError(400, "text: expected some text to read, got none")
    if len(value) > limits.characters:
        raise RefusedError(
            413, f"text: expected at most {limits.characters:,} characters, got {len(value):,}: shorten it"
        )
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise RefusedError(400, "text: expected whole characters, got half of one (a lone surrogate)")
    return value
