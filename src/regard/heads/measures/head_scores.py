"""The scores of every head on a text, from its attention map and the tokens.

A score is the mean of its per-query values (`query_scores.py`) over the queries for which it is defined. The
null of a score, its baseline, is the same score of `uniform(m)`, uniform attention to the visible keys. This
file knows maps and tokens; it does not know models.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.tensors import check_tensor, check_whole_numbers
from regard.heads.measures.query_scores import NEAR, Options, QueryScore, TextScorer
from regard.maps import AttentionMap


class HeadScores(NamedTuple):
    """One number for each text and head, (B, H). NaN where a score is defined for no query."""

    previous_token: Tensor
    """Mean of A[q, q − 1]."""
    itself: Tensor
    """Mean of A[q, q]."""
    duplicate: Tensor
    """Mass on earlier copies of the query's own token, over the queries that have one."""
    induction: Tensor
    """Prefix matching: mass on the tokens after earlier copies, over the queries that have such a token."""
    sink: Tensor
    """The mean weight on the sink key, over the queries that see it: above 0.3 it is a sink.

    The sink key is the key with the largest mean weight among those that 16 queries see, or more than half of
    them in a short text.
    """
    local: Tensor
    """Mass on the latest tokens, the query's own among them."""
    distance: Tensor
    """Mean distance back from the query to the keys, in tokens; NaN where queries see later tokens."""
    entropy: Tensor
    """In nats."""
    normalised_entropy: Tensor
    """Entropy divided by that of uniform attention: from 0, one key, to 1, all visible keys."""


@torch.no_grad()
def scores(m: AttentionMap, ids: Tensor, *, near: int = NEAR) -> HeadScores:
    """The scores of the heads of a map m (B, H, T, T) on tokens ids (B, T).

    `near` is the number of latest tokens that count as local.

    >>> import regard
    >>> q = torch.zeros(1, 1, 6, 2)
    >>> result = scores(regard.attention_map(q, q, mask=regard.causal), torch.tensor([[5, 7, 9, 5, 7, 9]]))
    >>> round(float(result.induction), 4)  # each of the last three has one such key among 4, 5 or 6
    0.2056
    """
    return scores_and_null(m, ids, near=near)[0]


def scores_and_null(
    m: AttentionMap, ids: Tensor, *, near: int = NEAR, scorer: TextScorer | None = None
) -> tuple[HeadScores, HeadScores]:
    """The scores of a map and those of uniform attention; `scorer`, if given, has to fit the map."""
    _check(m, ids)
    scorer = scorer or TextScorer(m, ids, options=Options(near))
    query_scores = scorer.score(m).scores
    shape = m.matrix[:3]
    return tuple(  # type: ignore[return-value]
        HeadScores(**{name: _mean(values[name], shape) for name in HeadScores._fields})
        for values in (query_scores, scorer.null)
    )


def _mean(score: QueryScore, shape: tuple[int, int, int]) -> Tensor:
    """The mean over the queries for which a score is defined, (B, H)."""
    defined = score.defined.expand(shape)
    return torch.where(defined, score.values.expand(shape), torch.nan).nanmean(-1)


def _check(m: AttentionMap, ids: Tensor) -> None:
    """Raise ValueError unless ids are the tokens of a map of self-attention."""
    if m.ndim != 4 or m.shape[2] != m.shape[3]:
        raise ValueError(f"m: expected (B, H, T, T), the map of self-attention, got {tuple(m.shape)}")
    shape = (m.shape[0], m.shape[2])
    expected = f"whole numbers {shape}, the tokens of the text"
    ids = check_whole_numbers("ids", check_tensor("ids", ids), expected)
    if tuple(ids.shape) != shape:
        raise ValueError(f"ids: expected {expected}, got {tuple(ids.shape)}")
