"""What each head does with a text: scores from its attention map and the tokens that it read.

A score is the mean of a reading over the queries that have an occasion; the readings are in `reading`. The
null of a score is the same score of `uniform(map)`, which looks at all it may see alike. This file knows maps
and tokens; it does not know models.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.heads.query_scores import Options, QueryScore, Text
from regard.maps import AttentionMap


class HeadScores(NamedTuple):
    """One number for each text and head, (B, H). NaN where a text gives no occasion."""

    previous_token: Tensor
    """Mean of A[q, q − 1]."""
    itself: Tensor
    """Mean of A[q, q]."""
    duplicate: Tensor
    """Mass on earlier copies of the query's own token, over the queries that have one."""
    induction: Tensor
    """Prefix matching: mass on what came after earlier copies, over the queries that have such a place."""
    sink: Tensor
    """The most that one key gets, on average over the queries that see it: above 0.3 it is a sink.

    A key counts if 16 queries see it, or more than half of them in a short text: what fewer do is chance.
    """
    local: Tensor
    """Mass within the latest tokens, the query's own among them."""
    distance: Tensor
    """How many tokens back it looks, on average."""
    entropy: Tensor
    """In nats."""
    normalised_entropy: Tensor
    """Entropy divided by that of looking everywhere alike: from 0, one key, to 1, all that can be seen."""


@torch.no_grad()
def scores(map: AttentionMap, ids: Tensor, *, near: int = 8) -> HeadScores:
    """What the heads of a map (B, H, T, T) do with the tokens ids (B, T); `near` is what counts as local.

    >>> import regard
    >>> q = torch.zeros(1, 1, 6, 2)
    >>> found = scores(regard.attention_map(q, q, mask=regard.causal), torch.tensor([[5, 7, 9, 5, 7, 9]]))
    >>> round(float(found.induction), 4)  # each of the last three looks at one place of 4, 5 or 6
    0.2056
    """
    return scores_and_null(map, ids, near=near)[0]


def scores_and_null(
    map: AttentionMap, ids: Tensor, *, near: int = 8, alike: Text | None = None
) -> tuple[HeadScores, HeadScores]:
    """The scores and what looking at everything alike would score; `alike` is a text that `suits` the map."""
    _check(map, ids)
    text = alike or Text(map, ids, options=Options(near))
    found, _ = text.read(map)
    shape = map.matrix[:3]
    return tuple(  # type: ignore[return-value]
        HeadScores(**{name: _mean(readings[name], shape) for name in HeadScores._fields})
        for readings in (found, text.null)
    )


def _mean(reading: QueryScore, shape: tuple[int, int, int]) -> Tensor:
    counted = reading.counted.expand(shape)
    return torch.where(counted, reading.values.expand(shape), torch.nan).nanmean(-1)


def _check(map: AttentionMap, ids: Tensor) -> None:
    if map.ndim != 4 or map.shape[2] != map.shape[3]:
        raise ValueError(f"map: expected (B, H, T, T), a text looking at itself, got {tuple(map.shape)}")
    wanted = (map.shape[0], map.shape[2])
    if not isinstance(ids, Tensor) or tuple(ids.shape) != wanted or ids.dtype.is_floating_point:
        came = f"{tuple(ids.shape)} {ids.dtype}" if isinstance(ids, Tensor) else type(ids).__name__
        raise ValueError(f"ids: expected whole numbers {wanted}, the tokens that were read, got {came}")
