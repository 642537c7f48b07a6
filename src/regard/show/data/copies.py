"""Which tokens of a text are copies of one another, so that the page can outline what induction predicts.

The page gets token texts, which may be equal for different tokens; ids are what the scores compare.
"""

from __future__ import annotations

from torch import Tensor


def first_copies(ids: Tensor | None, batch_index: int) -> list[int] | None:
    """Return for each token of one text the position of the first one with the same id.

    `ids` are (B, T), or None where they are not known: then the result is None, too.

    >>> import torch
    >>> first_copies(torch.tensor([[7, 3, 7, 5, 3]]), 0)
    [0, 1, 0, 3, 1]
    """
    if ids is None:
        return None
    first: dict[int, int] = {}
    return [first.setdefault(token, place) for place, token in enumerate(ids[batch_index].tolist())]
