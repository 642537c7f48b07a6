"""Per-query scores of linear layers, whose weights have either sign.

They are scores of the shares that the magnitudes |W| have in their row, so that they compare with those of
softmax attention. Scores that depend on weights being probabilities, or on a sink, are not defined.
"""

from __future__ import annotations

import torch

from regard.heads.measures.offsets import weight_back
from regard.heads.measures.query_scores import QueryScore, TextScorer
from regard.maps import LinearAttentionMap


def linear_scores(
    m: LinearAttentionMap, scorer: TextScorer
) -> tuple[dict[str, QueryScore], dict[str, QueryScore]]:
    """The scores of a map (B, H, T, S), and those of uniform attention."""
    magnitudes, near = m.magnitudes(), scorer.options.near
    B, H, T, _ = m.matrix
    total = magnitudes.total.reshape(B, H, T)
    # tiny: a row of zeros has no shares, and is not defined below.
    known = total.clamp(min=torch.finfo(m.dtype).tiny)
    defined = {name: score.defined for name, score in scorer.null.items()}
    shares = [weight_back(m, back).abs() / known for back in range(min(near, T + m.first_position))]
    zero = torch.zeros_like(known)
    values = {
        "previous_token": shares[1] if len(shares) > 1 else zero,
        "itself": shares[0],
        "local": sum(shares, zero),
        "distance": magnitudes.distance.reshape(B, H, T),
        "effective_length": magnitudes.entropy.reshape(B, H, T).exp(),
    }
    scores, null = {}, {}
    keys = scorer.visibility.keys
    for name, value in values.items():
        if name == "effective_length":
            scores[name] = QueryScore(value, defined["entropy"] & (total > 0))
            null[name] = QueryScore(keys.to(value), defined["entropy"])
        elif name in scorer.null:
            scores[name] = QueryScore(value, defined[name] & (total > 0))
            null[name] = scorer.null[name]
    return scores, null
