"""A figure of four panels: the weights of the simplified, trainable, causal and multi-head stages."""

from __future__ import annotations

from typing import Any

from regard.attention.masks.named_masks import causal, causal_mask
from regard.attention.steps import scaled_dot_product_attention
from regard.extras import extra
from regard.stages.example import TOKENS, X, multi_head, project
from regard.stages.picture import draw_heatmap
from regard.stages.simplified import simplified_self_attention


def draw_stages() -> Any:
    """Draw the four panels and return the Matplotlib figure."""
    with extra("app", "a figure"):
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure: Any = Figure(figsize=(14, 10.5), layout=ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.15))
    first, second, third, fourth = figure.subfigures(2, 2).flat
    future = ~causal_mask(len(TOKENS))
    q, k, v = project(X)
    panels = (
        (first, "1  Simplified: softmax(X Xᵀ)", simplified_self_attention(X)[1], None),
        (second, "2  Trainable: softmax(Q Kᵀ / √d)", scaled_dot_product_attention(q, k, v)[1], None),
        (
            third,
            "3  Causal: no token sees the future",
            scaled_dot_product_attention(q, k, v, causal)[1],
            future,
        ),
    )
    for panel, title, weights, hidden in panels:
        ax = panel.subplots()
        image = draw_heatmap(ax, weights, TOKENS, TOKENS, hidden=hidden, title=title)
        _colour_key(panel, image, ax)
    heads = fourth.subplots(1, 2, sharey=True)
    for ax, number, weights in zip(heads, (1, 2), multi_head(num_heads=2).attention(X)[1], strict=True):
        title = "4  Multi-head: head 1" if number == 1 else "head 2"
        ylabel = "query" if number == 1 else ""
        image = draw_heatmap(ax, weights, TOKENS, TOKENS, hidden=future, title=title, ylabel=ylabel)
    _colour_key(fourth, image, heads)  # the first token attends to itself alone, so both scales end at 1
    return figure


def _colour_key(panel: Any, image: Any, ax: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    bar = panel.colorbar(image, ax=ax, aspect=40, pad=0.02, ticks=MaxNLocator(5), format="%.2f")
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.set_label("weight", fontsize=9)
