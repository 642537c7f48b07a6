"""What the page says of each head: its scores, each beside its null, and a name if one stands out."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from regard.heads import scores, uniform
from regard.maps import AttentionMap
from regard.recorder import Layer, Seen


def describe(seen: Seen, entry: int) -> list[dict[str, Any]]:
    """One entry a head: {"layer", "head", "kv_head", "label", "scores": {name: {"value", "null"}}}."""
    ids = None if seen.ids is None else seen.ids[entry : entry + 1]
    return [head for layer in seen.layers for head in _layer(layer, ids, entry)]


def _layer(layer: Layer, ids: Tensor | None, entry: int) -> list[dict[str, Any]]:
    m = layer.map
    _, H, T, S = m.matrix
    group = H // m.k.shape[1]
    found: dict[str, dict[str, Tensor]] = {}
    if ids is not None and T == S == ids.shape[1]:
        whole = AttentionMap(m.q, m.k, m.lse, m.mask, m.scale, m.softcap, m.sinks)[entry : entry + 1]
        value, null = scores(whole, ids)._asdict(), scores(uniform(whole), ids)._asdict()
        found = {name: {"value": value[name][0], "null": null[name][0]} for name in value}
    return [
        {
            "layer": layer.key,
            "head": number,
            "kv_head": h // group,
            "label": None,
            "scores": {
                name: {kind: _finite(float(x[h])) for kind, x in kinds.items()}
                for name, kinds in found.items()
            },
        }
        for h, number in enumerate(layer.heads)
    ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
