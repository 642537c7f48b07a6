"""A walk through the stages in a terminal, on the example: shapes, numbers, row sums and heatmaps.

This file prints; the stages compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.attention.masks.named_masks import causal, causal_mask
from regard.attention.steps import Steps, trace
from regard.escapes import escape
from regard.extras import extra
from regard.stages.against_pytorch import check_against_pytorch
from regard.stages.cross import CrossAttention
from regard.stages.example import TOKENS, WQ, X, multi_head, project
from regard.stages.figure import draw_stages
from regard.stages.masking import efficient_masking, naive_masking
from regard.stages.multi_head import join_heads
from regard.stages.picture import check_figure_path, print_heatmap, save_figure
from regard.stages.projected import ProjectedMultiHeadAttention
from regard.stages.separate_heads import SeparateHeads
from regard.stages.simplified import simplified_self_attention

FUTURE = ~causal_mask(len(TOKENS))


def walk(save: str | Path | None = None) -> None:
    """Print every stage; `save` is a path to which the figure of four panels is also written."""
    with extra("app", "the walk through the stages"):
        from rich.console import Console

    if save is not None:
        save = check_figure_path(save)  # before any work is done
    console = Console(highlight=False, soft_wrap=True)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        _tokens(console)
        _simplified(console)
        _causal(console, _trainable(console))
        _multi_head(console)
        _cross(console)
    _heading(console, "Is it right?")
    check_against_pytorch()
    if save is not None:
        save_figure(draw_stages(), save)
        console.print(f"\nThe weights of all four stages as a figure: {escape(str(save))}", markup=False)


def _tokens(console: Any) -> None:
    _heading(console, "The example", "six tokens, three numbers each")
    for token, row in zip(TOKENS, X, strict=True):
        console.print(f"{token:>8}  {_numbers(row, 2)}")
    _shapes(console, X=X)


def _simplified(console: Any) -> None:
    _heading(console, "1. Simplified self-attention", "no weights: softmax of X Xᵀ, times X")
    out, attn = simplified_self_attention(X)
    _shapes(console, scores=X @ X.mT, attn=attn, out=out)
    _row(console, "scores of “model”", (X @ X.mT)[1])
    _weights(console, attn)
    _outputs(console, out)


def _trainable(console: Any) -> tuple[Tensor, Tensor, Tensor]:
    _heading(console, "2. Trainable self-attention", "learned queries, keys and values; scores over √d")
    q, k, v = project(X)
    steps = trace(q, k, v)
    _shapes(console, Wq=WQ, q=q, k=k, v=v, attn=steps.weights, out=steps.output)
    for name, projected in (("query", q), ("key", k), ("value", v)):
        _row(console, f"{name} of “model”", projected[1])
    _weights(console, steps.weights)
    _outputs(console, steps.output)
    return q, k, v


def _causal(console: Any, projected: tuple[Tensor, Tensor, Tensor]) -> None:
    _heading(console, "3. Causal self-attention", "a token sees itself and earlier tokens")
    steps: Steps = trace(*projected, causal)
    console.print("Every step for “learns”:")
    for name in ("scores", "scaled", "masked", "weights"):
        _row(console, name, getattr(steps, name)[2])
    _row(console, "output", steps.output[2])
    _weights(console, steps.weights, FUTURE)
    _outputs(console, steps.output)
    difference = naive_masking(steps.scaled, ~FUTURE) - efficient_masking(steps.scaled, ~FUTURE)
    console.print(
        f"Softmax then zero and renormalise, or −inf then softmax: {difference.abs().max():.1e} apart."
    )


def _multi_head(console: Any) -> None:
    _heading(console, "4. Multi-head attention", "the same projections, shared out between two heads")
    layer = multi_head(num_heads=2)
    out, weights = layer.attention(X)
    heads = {name: layer.split(W(X)) for name, W in (("q", layer.W_q), ("k", layer.W_k), ("v", layer.W_v))}
    _shapes(console, **heads, attn=weights, out=out)
    for number, head in enumerate(weights, start=1):
        console.print(f"Head {number}:")
        _weights(console, head, FUTURE)
    _outputs(console, out)
    separate = SeparateHeads(d_model=3, d_out=4, num_heads=2).eval()
    difference = (separate(X) - join_heads(separate)(X)).abs().max()
    console.print(f"One big projection or one a head: {difference:.1e} apart.")
    projected = ProjectedMultiHeadAttention(d_model=4, num_heads=2).eval()
    _shapes(console, **{"with W_o": projected(torch.randn(6, 4))})


def _cross(console: Any) -> None:
    _heading(console, "Beside them: cross-attention", "two tokens of one sequence read the six of another")
    out, attn = CrossAttention(d_model=3)(X[:2], X)
    _shapes(console, x=X[:2], context=X, attn=attn, out=out)
    _weights(console, attn, rows=TOKENS[:2])


def _heading(console: Any, title: str, what: str = "") -> None:
    console.print(f"\n[bold]{title}[/bold]" + (f"  {what}" if what else ""))


def _shapes(console: Any, **tensors: Tensor) -> None:
    console.print("shapes  " + "  ".join(f"{name} {tuple(x.shape)}" for name, x in tensors.items()))


def _numbers(row: Tensor, digits: int = 4) -> str:
    return " ".join(f"{value:{digits + 3}.{digits}f}" for value in row.tolist())


def _row(console: Any, name: str, row: Tensor) -> None:
    console.print(f"{name:>17}  {_numbers(row)}")


def _weights(
    console: Any, weights: Tensor, hidden: Tensor | None = None, rows: Sequence[str] = TOKENS
) -> None:
    print_heatmap(console, weights, rows, TOKENS, hidden=hidden)
    error = (weights.sum(-1) - 1).abs().max()
    console.print(f"Each row sums to 1, give or take {error:.1e}.")


def _outputs(console: Any, out: Tensor) -> None:
    console.print("Outputs:")
    for token, row in zip(TOKENS, out, strict=True):
        console.print(f"{token:>8}  {_numbers(row, 6)}")
