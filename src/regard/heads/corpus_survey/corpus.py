"""A corpus as a stream of windows of tokens: read chunk by chunk, never whole in memory.

The windows depend on the file, the tokenizer and the length of a window alone, so every process of a survey,
and every resumed one, reads the same windows in the same order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from regard.support.files import TextFileError, open_file, read_chunks

Encode = Callable[[str], list[int]]


class Batch(NamedTuple):
    """Some windows, and the approximate number of bytes of the corpus up to their end."""

    ids: Tensor  # (windows, T)
    bytes_read: int


def batches(
    corpus: Path,
    encode: Encode,
    length: int,
    batch: int,
    start: int | None = None,
    max_windows: int | None = None,
) -> Iterator[Batch]:
    """Consecutive windows of `length` tokens, `batch` at a time, at most `max_windows` in all.

    `start`, if any, is the first token of each. Tokens at the end that fill no window are left out, unless
    the text is shorter than one.
    """
    windows = islice(_windows(corpus, encode, length, start), max_windows)
    while group := list(islice(windows, batch)):
        yield Batch(torch.tensor([ids for ids, _ in group], device="cpu"), group[-1][1])


def _windows(corpus: Path, encode: Encode, length: int, start: int | None) -> Iterator[tuple[list[int], int]]:
    """Windows one by one, each with the approximate number of bytes up to its end."""
    lead = [] if start is None else [start]
    room = length - len(lead)
    pending: list[int] = []  # tokens that fill no window yet
    size = tokens = used = 0
    for chunk in read_chunks(corpus, "corpus"):
        ids = encode(chunk)
        pending += ids
        size, tokens = size + len(chunk.encode()), tokens + len(ids)
        while len(pending) >= room:
            used += room
            # An estimate: the bytes of a window's tokens are not known, and the bar needs no more.
            yield lead + pending[:room], size * used // tokens
            pending = pending[room:]
    # A text shorter than one window is still read: a survey of nothing would be an error.
    if not used and pending:
        yield lead + pending, size


def digest(corpus: Path) -> str:
    """The SHA-256 of the file."""
    with open_file(corpus, TextFileError, "a text file as the corpus") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
