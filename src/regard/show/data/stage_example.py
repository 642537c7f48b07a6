"""The running example of the four stages as the page shows it: six tokens, every row worked out.

The numbers are those of `regard.stages`, in the form in which `working` gives a model's.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from regard.attention.masks.base import Mask, full
from regard.attention.masks.named import causal
from regard.attention.steps import trace
from regard.maps import attention_map
from regard.show.data.row_steps import working
from regard.stages.example import TOKENS, WK, WQ, WV, X, multi_head, project
from regard.stages.simplified import simplified_self_attention


@cache
def example() -> dict[str, Any]:
    """{"tokens", "x", "projections", "stages": [{"name", "about", "mask", "projected", "heads", "apart"}]}.

    `heads` has each head's rows, worked out; `apart` is how far their outputs are from the stage's own.
    """
    q, k, v = (x[None] for x in project(X))  # (1, T, 2)
    projected = [q, k, v]
    layer = multi_head(num_heads=2)
    split = [layer.split(W(X)).detach() for W in (layer.W_q, layer.W_k, layer.W_v)]  # (2, T, 1) each
    with torch.no_grad():
        outputs = (
            simplified_self_attention(X)[0],
            trace(q, k, v).output[0],
            trace(q, k, v, causal).output[0],
            layer(X),
        )
    simple = "No weights at all: every token is its own query, key and value."
    trainable = "Three learned matrices turn each token into a query, a key and a value."
    past = "The same, and no token may look at those that come after it."
    apart = "The same numbers shared out between two heads, which look apart."
    stages = (
        ("Simplified", simple, [X[None]] * 3, full, 1.0),
        ("Trainable", trainable, projected, full, None),
        ("Causal", past, projected, causal, None),
        ("Two heads", apart, split, causal, None),
    )
    return {
        "tokens": list(TOKENS),
        "x": _rounded(X),
        "projections": {name: _rounded(W) for name, W in (("Wq", WQ), ("Wk", WK), ("Wv", WV))},
        "stages": [
            _stage(name, about, parts, mask, scale, output)
            for (name, about, parts, mask, scale), output in zip(stages, outputs, strict=True)
        ],
    }


def _stage(
    name: str, about: str, parts: list[Tensor], mask: Mask, scale: float | None, output: Tensor
) -> dict[str, Any]:
    """One stage, from q, k, v (H, T, D) and the output (T, H · E) that the stage itself gives."""
    q, k, v = parts
    H, T, _ = q.shape
    whole = attention_map(q[None], k[None], mask=mask, scale=scale)  # (1, H, T, T)
    heads = [[working(whole[:, h : h + 1], v[h], row, H, H) for row in range(T)] for h in range(H)]
    ours = torch.cat([torch.tensor([row["output"] for row in rows]) for rows in heads], -1)  # (T, H · E)
    return {
        "name": name,
        "about": about,
        "mask": str(mask),
        "projected": q.shape[-1] != X.shape[-1],
        "heads": heads,
        "apart": float((ours - output).abs().max()),
    }


def _rounded(x: Tensor) -> list[list[float]]:
    """As they were written: float32 has no more digits."""
    return [[round(value, 6) for value in row] for row in x.tolist()]
