"""The same scores without the sink: its column taken out, and what is left of each row spread over the rest.

A head that gives most of every row to one key does something else with what remains; that is often what it is
for. All of it follows from the column's weights: no second pass over the map.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.heads.query_scores import LEFT, SINK, QueryScore, Text
from regard.maps import AttentionMap


def without_sink(
    text: Text, map: AttentionMap, found: dict[str, QueryScore], sink_key: Tensor
) -> dict[str, QueryScore]:
    """The readings of rows renormalised without their sink, for texts and heads that have one.

    Where the key that gets most gets no more than 0.3 on average there is no sink, and nothing changes. Rows
    that leave less than a thousandth beside the sink do not count.
    """
    column, seen = found["sink"]
    share = (column * seen).sum(-1) / seen.sum(-1).clamp(min=1)  # (B, H)
    taken = torch.where((share > SINK).unsqueeze(-1), column, 0.0)  # (B, H, T)
    left = text.total(map) - taken
    places, keys = text.places(), sink_key.unsqueeze(-1)  # (T,), (B, H, 1)
    back = places - keys  # how far back the sink lies, (B, H, T)
    first, latest = text.options.kept
    kept = torch.zeros_like(back, dtype=torch.bool)
    for key in text.first_keys(first) if not text.crossed else ():
        kept |= keys == key.view(-1, 1, 1)
    part_of = {  # whether the sink's weight was part of a score
        "previous_token": back == 1,
        "itself": back == 0,
        "local": (back >= 0) & (back < text.options.near),
        "eviction": (back >= latest) & ~kept,
        "duplicate": _equal(text, keys, 0) & (back > 0),
        "induction": _equal(text, keys, 1) & (back > 0),
    }
    out = {}
    for name, (values, counted) in found.items():
        counted = counted & (left > LEFT)
        if name in part_of:
            out[name] = QueryScore((values - taken * part_of[name]).clamp(min=0.0) / left, counted)
        elif name == "distance":
            out[name] = QueryScore((values - taken * back) / left, counted)
        elif name in ("entropy", "normalised_entropy"):
            entropy = (found["entropy"].values + torch.special.xlogy(taken, taken)) / left + left.log()
            others = text.sight.keys - (taken > 0).int()
            if name == "entropy":
                out[name] = QueryScore(entropy.clamp(min=0.0), counted)
            else:
                relative = entropy.clamp(min=0.0) / others.clamp(min=2).log()
                out[name] = QueryScore(relative, counted & (others > 1))
    return out


def _equal(text: Text, keys: Tensor, shift: int) -> Tensor:
    """Whether the token `shift` places before the sink is the query's own, (B, H, T)."""
    if text.ids is None:
        return torch.zeros((), dtype=torch.bool, device=keys.device)
    before = (keys - shift).squeeze(-1)  # (B, H)
    token = text.ids.gather(1, before.clamp(min=0)).unsqueeze(-1)  # (B, H, 1)
    own = text.ids[:, text.places()].unsqueeze(1)  # (B, 1, T)
    return (token == own) & (before >= 0).unsqueeze(-1)
