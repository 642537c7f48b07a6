"""The running example of the teaching stages for the page: six tokens, with every row computed.

The numbers are those of `regard.stages`, in the form in which `row_steps` describes a model's.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from regard.attention.masks.base import Mask, full
from regard.attention.masks.named_masks import causal
from regard.maps import attention_map
from regard.show.data.row_steps import trace_row
from regard.stages.causal import CausalSelfAttention
from regard.stages.example import TOKENS, WK, WQ, WV, X, multi_head, project, with_example_weights
from regard.stages.scaled import SelfAttention
from regard.stages.simplified import simplified_self_attention
from regard.stages.trainable import UnscaledSelfAttention


@cache
def build_example() -> dict[str, Any]:
    """Return {"tokens", "x", "projections", "stages"} as plain data.

    Each stage has a "name", which begins with its number, a sentence "about" it, its "mask", whether the
    inputs are "projected", the steps of every row of its "heads", and in "apart" the largest difference
    between the outputs of those steps and the output that the stage itself computes.
    """
    q, k, v = (x[None] for x in project(X))  # (1, T, 2)
    projected = [q, k, v]
    # The stages draw their layers with torch.nn, which torch.set_default_device would put on a GPU.
    with torch.no_grad(), torch.device("cpu"):
        layer = multi_head(num_heads=2)
        split = [layer.split(W(X)) for W in (layer.W_q, layer.W_k, layer.W_v)]  # (2, T, 1) each
        outputs = (
            simplified_self_attention(X)[0],
            with_example_weights(UnscaledSelfAttention(3, head_dim=2))(X)[0],
            with_example_weights(SelfAttention(3, head_dim=2))(X)[0],
            with_example_weights(CausalSelfAttention(3, len(TOKENS), head_dim=2))(X),
            layer(X),
        )
    simplified = "No learned weights: every token is its own query, key and value."
    trainable = "Three learned matrices turn each token into a query, a key and a value."
    scaled = "The same, with the scores divided by the square root of the width of a query."
    masked = "The same, with a causal mask: no token attends to the tokens after it."
    two_heads = "The same numbers split between two heads, which attend separately."
    stages = (
        ("1 Simplified", simplified, [X[None]] * 3, full, 1.0),
        ("2 Trainable", trainable, projected, full, 1.0),
        ("3 Scaled", scaled, projected, full, None),
        ("4 Causal", masked, projected, causal, None),
        ("6 Two heads", two_heads, split, causal, None),
    )
    return {
        "tokens": list(TOKENS),
        "x": _rounded(X),
        "projections": {name: _rounded(W) for name, W in (("W_q", WQ), ("W_k", WK), ("W_v", WV))},
        "stages": [
            _stage(name, about, qkv, mask, scale, output)
            for (name, about, qkv, mask, scale), output in zip(stages, outputs, strict=True)
        ],
    }


def _stage(
    name: str, about: str, qkv: list[Tensor], mask: Mask, scale: float | None, output: Tensor
) -> dict[str, Any]:
    """Describe one stage from q, k and v, (H, T, D) each, and the stage's own output, (T, H · E)."""
    q, k, v = qkv
    H, T, _ = q.shape
    m = attention_map(q[None], k[None], mask=mask, scale=scale)  # (1, H, T, T)
    heads = [[trace_row(m[:, h : h + 1], v[h], row, H, H) for row in range(T)] for h in range(H)]
    outputs = [torch.tensor([row["output"] for row in rows], device="cpu") for rows in heads]
    traced = torch.cat(outputs, -1)  # (T, H · E)
    return {
        "name": name,
        "about": about,
        "mask": str(mask),
        "projected": q.shape[-1] != X.shape[-1],
        "heads": heads,
        "apart": float((traced - output).abs().max()),
    }


def _rounded(x: Tensor) -> list[list[float]]:
    """Round to six decimals, which undoes the conversion to float32 of numbers that were written by hand."""
    return [[round(value, 6) for value in row] for row in x.tolist()]
