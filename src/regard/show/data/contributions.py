"""What heads and MLPs add, as the page shows it: factors of the keys, and where a token's logit comes from.

A map of contributions is the map of weights, each times a factor of its key. So a factor for each head and
key is all that is stored, also in a saved page. This file knows captures; it does not know pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.recorder import Capture, Layer
from regard.recorder.contributions import Attribution
from regard.show.data.cuts import Cut, HeadCut
from regard.show.data.map_view.quantity import Shade


def available_shades(capture: Capture) -> list[Shade]:
    """Return what the cells of a capture's maps can stand for: weights, and more with contributions."""
    residual = capture.residual
    if residual is None:
        return ["weights"]
    projections = [residual.projections.get(layer.key) for layer in capture.layers]
    shades: list[Shade] = ["weights"]
    # A gated projection multiplies the head's output by numbers of the query: no factor of a key alone
    # describes it.
    if all(projection is not None and not projection.is_gated for projection in projections):
        shades.append("values")
    if (
        residual.problem is None
        and residual.unembedding is not None
        and residual.passes
        and capture.predictions
    ):
        shades.append("logit")
    return shades


def value_factors(capture: Capture, layer: Layer, entry: int) -> Tensor:
    """Return the norm of what each key's value adds to the residual stream, (1, H, S)."""
    return capture.value_weighted(layer.key).u[entry : entry + 1]


def logit_factors(attribution: Attribution, layer: Layer) -> Tensor:
    """Return what each key adds to a logit for each unit of weight, (1, H, S)."""
    if layer.key not in attribution.layers:
        _, H, _, S = layer.shape
        return torch.zeros(1, H, S, dtype=layer.map.dtype, device=layer.map.device)
    edges = [attribution.edges(layer.key, head) for head in layer.heads]
    return torch.cat([one.u for one in edges], 1)


def without_cut_heads(factors: Tensor, layer: Layer, cuts: Sequence[Cut]) -> Tensor:
    """Return factors (1, H, S) that are 0 for cut heads, which have weights and values and add nothing."""
    cut = {one.head for one in cuts if isinstance(one, HeadCut) and one.layer == str(layer.key)}
    kept = torch.tensor([head not in cut for head in layer.heads], device=factors.device)
    return factors * kept[:, None]


def telling_position(capture: Capture, entry: int) -> int:
    """Return a position whose next token is worth explaining.

    Of the second half of a text it is where the next token, which has letters, was predicted best; the last
    position if no token there has letters.
    """
    assert capture.predictions is not None
    losses = capture.predictions.losses[entry]
    T = len(losses) + 1
    tokens = capture.tokens[entry] if capture.tokens else [""] * T
    loss = {
        t: float(losses[t])
        for t in range(T // 2, T - 1)
        if tokens[t].strip() and any(map(str.isalpha, tokens[t + 1])) and bool(losses[t].isfinite())
    }
    return min(loss, key=lambda t: loss[t]) if loss else T - 1


def describe_attribution(
    attribution: Attribution, capture: Capture, token: dict[str, Any], others: list[dict[str, Any]]
) -> dict[str, Any]:
    """Describe an attribution as plain data: heads and MLPs by the key of their layer, the rest together.

    `token` is the one whose logit it is, and `others` are those to choose from.
    """
    heads = {str(key): row for key, row in zip(attribution.layers, attribution.heads.tolist(), strict=True)}
    mlps: dict[str, float] = {}
    rest = attribution.rest
    for block, value in zip(attribution.blocks, attribution.mlps.tolist(), strict=True):
        layer = next((one for one in capture.layers if one.name.startswith(f"{block}.")), None)
        if layer is None:  # a block without attention has no row on the page
            rest += value
        else:
            mlps[str(layer.key)] = mlps.get(str(layer.key), 0.0) + value
    return {
        "position": attribution.position,
        "token": token,
        "candidates": others,
        "logit": attribution.logit,
        "embedding": attribution.embedding,
        "heads": {
            str(x.key): [heads[str(x.key)][h] for h in x.heads] for x in capture.layers if str(x.key) in heads
        },
        "mlps": mlps,
        "rest": rest,
    }
