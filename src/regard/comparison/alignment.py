"""Aligns two sequences of token ids by their longest common subsequence.

This file knows numbers; what they are the ids of is known to its callers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Alignment(NamedTuple):
    """The positions of the tokens that two sequences share, in order: those in a, and those in b."""

    a: Tensor  # (n,)
    b: Tensor  # (n,)


def align(a: Sequence[int], b: Sequence[int]) -> Alignment:
    """Align two sequences by a longest common subsequence.

    It takes time proportional to the product of what is left of their lengths without the beginning and the
    end that they share, and memory proportional to their lengths.

    >>> align([1, 2, 3, 9], [1, 3, 4, 9])
    Alignment(a=tensor([0, 2, 3]), b=tensor([0, 1, 3]))
    """
    first = 0
    while first < min(len(a), len(b)) and a[first] == b[first]:
        first += 1
    last = 0
    while last < min(len(a), len(b)) - first and a[-1 - last] == b[-1 - last]:
        last += 1
    middle = _common(
        np.asarray(a[first : len(a) - last], np.int64), np.asarray(b[first : len(b) - last], np.int64)
    )
    pairs = [(i, i) for i in range(first)]
    pairs += [(i + first, j + first) for i, j in middle]
    pairs += [(len(a) - n, len(b) - n) for n in range(last, 0, -1)]
    table = torch.tensor(pairs, dtype=torch.long, device="cpu").view(-1, 2)
    return Alignment(table[:, 0].contiguous(), table[:, 1].contiguous())


def _common(a: NDArray[np.int64], b: NDArray[np.int64]) -> list[tuple[int, int]]:
    """The pairs of positions of a longest common subsequence, by Hirschberg's halving of a."""
    if not len(a) or not len(b):
        return []
    if len(a) == 1:
        places = np.flatnonzero(b == a[0])
        return [(0, int(places[0]))] if len(places) else []
    half = len(a) // 2
    # The best place to cut b: what the first half of a shares before it, and the second half after it.
    before, after = _lengths(a[:half], b), _lengths(a[half:][::-1], b[::-1])[::-1]
    cut = int(np.argmax(before + after))
    second = [(i + half, j + cut) for i, j in _common(a[half:], b[cut:])]
    return _common(a[:half], b[:cut]) + second


def _lengths(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    """The length of a longest common subsequence of a and each beginning of b, (len(b) + 1,)."""
    row = np.zeros(len(b) + 1, np.int64)
    for token in a:
        longer = np.where(b == token, row[:-1] + 1, row[1:])
        row[1:] = np.maximum.accumulate(np.maximum(longer, row[1:]))
    return row
