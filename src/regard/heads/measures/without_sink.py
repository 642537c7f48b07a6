"""The scores of rows without their sink: its column is removed, and what is left of each row is renormalised.

A head that gives most of every row to one key does something else with what remains, and often that is its
function. Everything follows from the column's weights; no second pass over the map is needed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.heads.measures.query_scores import QueryScore, TextScorer
from regard.heads.measures.sink import SINK
from regard.maps import AttentionMap
from regard.policies.named_policies import is_evicted

MIN_REST = 1e-3  # of a row beside the sink; rows with less do not count


def without_sink(
    scorer: TextScorer, m: AttentionMap, scores: dict[str, QueryScore], sink_key: Tensor
) -> dict[str, QueryScore]:
    """The scores of rows renormalised without their sink, for texts and heads that have one.

    `scores` and `sink_key` (B, H) are those of `scorer.score(m)`. A head whose sink key receives no more than
    0.3 on average has no sink, and its scores do not change.
    """
    column, sees_sink = scores["sink"]
    share = (column * sees_sink).sum(-1) / sees_sink.sum(-1).clamp(min=1)  # (B, H)
    removed = torch.where((share > SINK).unsqueeze(-1), column, 0.0)  # (B, H, T)
    rest = scorer.row_sums(m) - removed
    positions, keys = scorer.positions(), sink_key.unsqueeze(-1)  # (T,), (B, H, 1)
    back = positions - keys  # distance to the sink, (B, H, T)
    sinks, window = scorer.options.policy
    first = scorer.first_keys(0 if scorer.crossed else sinks).unsqueeze(1)  # (B, 1, n)
    kept_first = (keys == first).any(-1, keepdim=True)  # (B, H, 1)
    includes_sink = {  # whether a score included the sink's weight
        "previous_token": back == 1,
        "itself": back == 0,
        "local": (back >= 0) & (back < scorer.options.near),
        "eviction": is_evicted(positions, keys, window, kept_first),
        "duplicate": _equal_tokens(scorer, keys, 0) & (back > 0),
        "induction": _equal_tokens(scorer, keys, 1) & (back > 0),
    }
    others = scorer.visibility.keys - (removed > 0).int()  # visible keys beside the sink
    # xlogy gives 0 for a row of which nothing is removed.
    entropy = (scores["entropy"].values + torch.special.xlogy(removed, removed)) / rest + rest.log()
    # Rounding may leave −1e-8 of a row that has one key left.
    entropy = entropy.clamp(min=0.0)
    changed = {}
    for name, (values, defined) in scores.items():
        defined = defined & (rest > MIN_REST)
        if name in includes_sink:
            values = (values - removed * includes_sink[name]).clamp(min=0.0) / rest
        elif name == "distance":
            values = (values - removed * back) / rest
        elif name == "entropy":
            values = entropy
        elif name == "normalised_entropy":
            values, defined = entropy / others.clamp(min=2).log(), defined & (others > 1)
        else:
            continue
        changed[name] = QueryScore(values, defined)
    return changed


def _equal_tokens(scorer: TextScorer, keys: Tensor, shift: int) -> Tensor:
    """Whether the token `shift` positions before the sink `keys` (B, H, 1) is the query's own, (B, H, T)."""
    if scorer.ids is None:
        return torch.zeros((), dtype=torch.bool, device=keys.device)
    before = (keys - shift).squeeze(-1)  # (B, H)
    token = scorer.ids.gather(1, before.clamp(min=0)).unsqueeze(-1)  # (B, H, 1)
    own = scorer.ids[:, scorer.positions()].unsqueeze(1)  # (B, 1, T)
    return (token == own) & (before >= 0).unsqueeze(-1)
