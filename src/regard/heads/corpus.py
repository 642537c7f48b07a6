"""A corpus as a stream of windows of tokens: read piece by piece, never whole in memory.

What is in which window depends on the file, the tokenizer and the length of a window alone, so every process
of a survey, and every resumed one, sees the same windows in the same order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

PIECE = 1 << 14  # characters that are encoded at a time, and on to the end of the line
Encode = Callable[[str], list[int]]


class Batch(NamedTuple):
    """Some windows, and about how many bytes of the corpus they reach to."""

    ids: Tensor  # (windows, T)
    read: int


def batches(
    corpus: Path, encode: Encode, length: int, batch: int, start: int | None = None, most: int | None = None
) -> Iterator[Batch]:
    """Windows of `length` tokens, side by side, `batch` at a time, at most `most` in all.

    `start`, if any, takes the first place of each. What is left at the end and fills no window is left out,
    unless it is all there is.
    """
    windows = islice(_windows(corpus, encode, length, start), most)
    while some := list(islice(windows, batch)):
        yield Batch(torch.tensor([ids for ids, _ in some]), some[-1][1])


def _windows(corpus: Path, encode: Encode, length: int, start: int | None) -> Iterator[tuple[list[int], int]]:
    lead = [] if start is None else [start]
    room = length - len(lead)
    held: list[int] = []
    size = tokens = used = 0
    for piece in pieces(corpus):
        found = encode(piece)
        held += found
        size, tokens = size + len(piece.encode()), tokens + len(found)
        while len(held) >= room:
            used += room
            yield lead + held[:room], size * used // tokens
            held = held[room:]
    if not used and held:
        yield lead + held, size


def pieces(corpus: Path) -> Iterator[str]:
    """The text of a file in parts that end with a line; ValueError says what is wrong with it."""
    if not corpus.is_file():
        raise ValueError(f"corpus: expected a text file, got {corpus}, which is not there")
    empty = True
    try:
        with corpus.open(encoding="utf-8-sig") as opened:
            while piece := opened.read(PIECE):
                piece += opened.readline()
                if "\0" in piece:
                    raise ValueError(f"corpus: expected text, but {corpus} holds zero bytes: is it binary?")
                empty = empty and not piece.strip()
                yield piece
    except UnicodeDecodeError as error:
        raise ValueError(f"corpus: expected UTF-8 text, but {corpus} is not: {error.reason}") from None
    if empty:
        raise ValueError(f"corpus: expected text, but {corpus} is empty")


def digest(corpus: Path) -> str:
    """What a corpus is recognised by."""
    with corpus.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
