"""Limits of the server and the errors for exceeding them: sizes, counts, one model job at a time.

This file knows numbers, texts and HTTP status codes; it does not know what is served.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from regard.attention.arguments import check_whole_number
from regard.support.files import shorten

MAX_TEMPERATURE = 5


@dataclass(frozen=True)
class Limits:
    """Bounds on what a page may request."""

    body: int = 1 << 20
    """Maximum size of a request, in bytes."""
    characters: int = 200_000
    """Maximum length of a text to read, in characters."""
    tokens: int = 16_384
    """Maximum length of a text that was read, in tokens; a longer one is not kept."""
    texts: int = 16
    """Maximum number of texts held at once, including those the server started with."""
    generated: int = 256
    """Maximum number of tokens generated for one request."""
    waiting: int = 256
    """Maximum number of requests of a notebook that wait for a worker; `connections` bounds those of HTTP."""
    workers: int = 2
    """Number of threads that compute."""
    connections: int = 128
    """Maximum number of connections at once."""
    head: int = 1 << 15
    """Maximum size of a request's line and headers, in bytes."""


class RefusedError(Exception):
    """A request that is not served: an HTTP status and a sentence for the reader."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class StoppedError(Exception):
    """The client disconnected, so the work should end."""


class ExclusiveJob:
    """A lock for one job at a time. A second job is refused with the name of the one that is running."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.doing = ""

    def acquire(self, doing: str) -> None:
        """Start a job; `doing` describes it, as in "reading a text"."""
        if not self._lock.acquire(blocking=False):
            raise RefusedError(409, f"the model is busy {self.doing}: try again when it is done")
        self.doing = doing

    def release(self) -> None:
        """End the job."""
        self.doing = ""
        self._lock.release()


def check_number(name: str, value: object, least: int, most: int) -> int:
    """Return `value` as a whole number from `least` to `most`, or refuse the request."""
    # isascii: Python's isdigit accepts digits of other scripts and superscripts.
    if isinstance(value, str) and value.removeprefix("-").isascii() and value.removeprefix("-").isdigit():
        # 16 digits are beyond every limit, and int() of thousands is slow.
        value = int(value) if len(value) < 16 else value
    try:
        return check_whole_number(name, value, least, most)
    except ValueError as error:
        raise RefusedError(400, str(error)) from None


def check_temperature(value: object) -> float:
    """Return `value` as a sampling temperature, or refuse the request."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_TEMPERATURE:
        raise RefusedError(
            400, f"temperature: expected a number from 0 to {MAX_TEMPERATURE}, got {shorten(value)}"
        )
    return float(value)


def check_text(value: object, limits: Limits) -> str:
    """Return `value` as a text that may be read, or refuse the request."""
    if not isinstance(value, str) or not value.strip():
        raise RefusedError(400, "There is no text to read yet: write or paste one.")
    if len(value) > limits.characters:
        raise RefusedError(
            413,
            f"This text has {len(value):,} characters; the page reads at most {limits.characters:,}.",
        )
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise RefusedError(400, "text: expected whole characters, got half of one (a lone surrogate)")
    return value
