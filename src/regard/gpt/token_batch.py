"""Token ids of several lengths in one table: shorter rows are padded, and a mask tells tokens from padding.

This is the one definition of padding: `generate` and `capture(text=[…])` use it. It knows ids; it knows
neither text nor models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Side = Literal["left", "right"]


class TokenBatch(NamedTuple):
    """Rows of token ids of one length."""

    ids: Tensor  # (B, T)
    is_token: Tensor  # (B, T) booleans, False for padding


def pad_rows(rows: Sequence[Sequence[int]], side: Side = "left", fill: int = 0) -> TokenBatch:
    """Pad rows of token ids to the length of the longest.

    On the left, as generation needs it, the last token of every row is at the last position. `fill` is the
    id of the padding, which nothing sees.

    >>> pad_rows([[5, 6, 7], [8]])
    TokenBatch(ids=tensor([[5, 6, 7],
            [0, 0, 8]]), is_token=tensor([[ True,  True,  True],
            [False, False,  True]]))
    """
    T = max(map(len, rows))
    # On the CPU, also under torch.set_default_device: callers move the table to where their model is.
    ids = torch.full((len(rows), T), fill, device="cpu")
    is_token = torch.zeros(len(rows), T, dtype=torch.bool, device="cpu")
    for number, row in enumerate(rows):
        places = slice(T - len(row), T) if side == "left" else slice(0, len(row))
        ids[number, places] = torch.tensor(row, dtype=torch.long, device="cpu")
        is_token[number, places] = True
    return TokenBatch(ids, is_token)
