"""Aligns two sequences of token ids, as `difflib` aligns lines.

This file knows numbers; what they are the ids of is known to its callers.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

import torch
from torch import Tensor


class Alignment(NamedTuple):
    """The positions of the tokens that two sequences share, in order: those in a, and those in b."""

    a: Tensor  # (n,)
    b: Tensor  # (n,)


def align(a: Sequence[int], b: Sequence[int]) -> Alignment:
    """Align two sequences: by the longest run that both have, then by what lies on either side of it.

    >>> align([1, 2, 3, 9], [1, 3, 4, 9])
    Alignment(a=tensor([0, 2, 3]), b=tensor([0, 1, 3]))
    """
    # autojunk would leave out frequent tokens, such as a comma.
    blocks = SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    first, second = (
        torch.tensor([start + i for start, n in runs for i in range(n)], dtype=torch.long, device="cpu")
        for runs in ([(x.a, x.size) for x in blocks], [(x.b, x.size) for x in blocks])
    )
    return Alignment(first, second)
