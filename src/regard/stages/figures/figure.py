"""A figure of the attention weights of the stages, on one colour scale.

The tokens are those of the example. Its projections give nearly equal weights at every stage, which is good
for arithmetic by hand and poor for a picture, so the figure has projections of its own, `W_Q` and `W_K`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.attention.masks.named_masks import causal, causal_mask
from regard.attention.steps import scaled_dot_product_attention
from regard.stages.causal import CausalSelfAttention
from regard.stages.example import TOKENS, X, with_weights
from regard.stages.figures.picture import draw_heatmap
from regard.stages.multi_head import MultiHeadAttention
from regard.stages.positions import rotate
from regard.stages.scaled import SelfAttention
from regard.stages.simplified import simplified_self_attention
from regard.stages.trainable import UnscaledSelfAttention
from regard.support.imports import extra

W_Q = torch.tensor([[-5.0, 2.0, -4.0, 5.0], [0.0, 2.0, -2.0, -2.0], [5.0, -3.0, 5.0, -1.0]])
W_K = torch.tensor([[-3.0, -4.0, 5.0, 1.0], [0.0, 0.0, 4.0, 4.0], [4.0, -2.0, -4.0, -2.0]])
DROPOUT = 0.25
DROPPED = ((1, 1), (2, 0), (3, 1), (4, 0), (5, 2))  # (query, key)
CAPTION = (
    "Attention weights of six tokens. A row is one query and sums to 1; with dropout (5) it does so on "
    "average. Stages 2 to 8 share one pair of projections, chosen so that the stages differ visibly.\n"
    "Stages 7, 9 and 10 have no panel: what they add does not change these weights."
)


class Panel(NamedTuple):
    """One heatmap: the number of its stage, its name, what is new in it, and its weights (T, T)."""

    stage: int
    name: str
    idea: str
    weights: Tensor
    masked: bool = True


def draw_stages() -> Any:
    """Draw a panel for each stage that changes the weights, and return the Matplotlib figure."""
    with extra("app", "a figure"):
        from matplotlib.figure import Figure

    # Fixed margins: the solver of the constrained layout gives other last digits now and then.
    figure: Any = Figure(figsize=(16, 9.6))
    margins = {"left": 0.06, "right": 0.935, "top": 0.92, "bottom": 0.155, "wspace": 0.08, "hspace": 0.27}
    grid = figure.subplots(2, 4, sharex=True, sharey=True, gridspec_kw=margins)
    future = ~causal_mask(len(TOKENS))
    for ax, panel in zip(grid.flat, stage_panels(), strict=True):
        hidden = future if panel.masked else None
        image = draw_heatmap(ax, panel.weights, TOKENS, TOKENS, hidden=hidden, top=1.0, fontsize=10)
        ax.set_box_aspect(1)
        ax.label_outer()
        ax.set_title(f"{panel.stage}  {panel.name}", loc="left", fontsize=14, fontweight="bold", pad=24)
        ax.text(0, 1.03, panel.idea, transform=ax.transAxes, fontsize=11, color="#4a4f5c")
    _colour_key(figure, image)
    figure.supxlabel(CAPTION, fontsize=10.5, color="#4a4f5c", x=0.01, y=0.012, ha="left", linespacing=1.5)
    return figure


def stage_panels() -> tuple[Panel, ...]:
    """The panels in the order of the stages, computed by the stages themselves."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):  # building a layer draws its first weights
        unscaled = with_weights(UnscaledSelfAttention(3, head_dim=4), W_q=W_Q, W_k=W_K)
        scaled = with_weights(SelfAttention(3, head_dim=4), W_q=W_Q, W_k=W_K)
        masked = with_weights(CausalSelfAttention(3, len(TOKENS), head_dim=4), W_q=W_Q, W_k=W_K)
        heads = with_weights(MultiHeadAttention(3, d_out=4, num_heads=2), W_q=W_Q, W_k=W_K)
        weights = masked.attention(X)[1]
        first, second = heads.attention(X)[1]
        q, k = (heads.split(W(X))[0] for W in (heads.W_q, heads.W_k))  # (T, head_dim) of the first head
        rotated = scaled_dot_product_attention(rotate(q), rotate(k), k, causal)[1]
        return (
            Panel(1, "Simplified", "softmax(x xᵀ): similar tokens", simplified_self_attention(X)[1], False),
            Panel(2, "Trainable", "softmax(Q Kᵀ): learned projections", unscaled(X)[1], False),
            Panel(3, "Scaled", "softmax(Q Kᵀ / √d): softer", scaled(X)[1], False),
            Panel(4, "Causal", "no token sees the future", weights),
            Panel(5, "Head", "dropout: five are 0, the rest × 4/3", drop(weights)),
            Panel(6, "Several heads", "head 1: half of the channels", first),
            Panel(6, "Several heads", "head 2: the other half", second),
            Panel(8, "Positions", "head 1, turned by position", rotated),
        )


def drop(weights: Tensor) -> Tensor:
    """Weights (T, T) after dropout of the cells `DROPPED`, so that the picture is always the same."""
    keep = torch.ones_like(weights)
    for query, key in DROPPED:
        keep[query, key] = 0.0
    return weights * keep / (1 - DROPOUT)


def _colour_key(figure: Any, image: Any) -> None:
    ax = figure.add_axes((0.95, 0.155, 0.01, 0.765))
    bar = figure.colorbar(image, cax=ax, extend="max", format="%.1f")
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=10, length=2)
    bar.set_label("weight", fontsize=11)
