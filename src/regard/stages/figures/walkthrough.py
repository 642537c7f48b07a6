"""A walk through the stages in a terminal, on the example: numbers, heatmaps, and what to look at.

All heatmaps of a walk have one colour scale, from 0 to 1. This file prints; the stages compute.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.attention.masks.named_masks import causal, causal_mask
from regard.attention.steps import trace
from regard.stages.against_pytorch import check_against_pytorch
from regard.stages.cached import CachedMultiHeadAttention
from regard.stages.causal import CausalSelfAttention
from regard.stages.cross import CrossAttention
from regard.stages.example import TOKENS, X, multi_head, project, with_example_weights
from regard.stages.figures.figure import draw_stages
from regard.stages.figures.picture import SUFFIXES, print_heatmap, save_figure
from regard.stages.head import Head
from regard.stages.masking import efficient_masking, naive_masking
from regard.stages.multi_head import join_heads
from regard.stages.positions import PositionalAttention
from regard.stages.projected import ProjectedMultiHeadAttention
from regard.stages.scaled import SelfAttention
from regard.stages.separate_heads import SeparateHeads
from regard.stages.simplified import simplified_self_attention
from regard.stages.trainable import UnscaledSelfAttention
from regard.stages.transformer import SmallGPT
from regard.support.characters import escape
from regard.support.files import check_target
from regard.support.imports import extra

FUTURE = ~causal_mask(len(TOKENS))
MODEL, LEARNS, ROUNDS = 1, 2, 5  # the rows that are shown in numbers


def walk(save: str | Path | None = None) -> None:
    """Print every stage; `save` is a path to which the figure of the stages is also written."""
    with extra("app", "the walk through the stages"):
        from rich.console import Console

    if save is not None:
        check_target("save", Path(save), SUFFIXES)  # before any work is done
    console = Console(highlight=False, soft_wrap=True)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        _example(console)
        _simplified(console)
        _trainable(console)
        _scaled(console)
        _causal(console)
        _head(console)
        _several_heads(console)
        _output(console)
        _positions(console)
        _cached(console)
        _transformer(console)
    console.print(
        "\nEvery stage is a short file of regard.stages, and a lesson: regard learn 1", markup=False
    )
    if save is not None:
        save_figure(draw_stages(), save)
        console.print(f"The weights of the stages as a figure: {escape(str(save))}", markup=False)


def _example(console: Any) -> None:
    console.print("[bold]The example[/bold]  x (6, 3): six tokens, three numbers each")
    for token, row in zip(TOKENS, X, strict=True):
        console.print(f"{token:>8}  {_numbers(row, 2)}")


def _simplified(console: Any) -> None:
    _heading(console, 1, "Simplified", "softmax(x xᵀ) x, nothing to learn")
    out, weights = simplified_self_attention(X)
    _row(console, "scores of “model”", (X @ X.mT)[MODEL])
    _weights(console, weights)
    console.print(f"Each row sums to 1, give or take {_size(weights.sum(-1) - 1)}.")
    _row(console, "output of “model”", out[MODEL], 6)
    _look(console, "“model” and “learns” have similar numbers, so each gives the other a large weight.")


def _trainable(console: Any) -> None:
    _heading(console, 2, "Trainable", "softmax(Q Kᵀ) V: projections W_q, W_k, W_v (3, 2)")
    q, k, v = project(X)
    out, weights = with_example_weights(UnscaledSelfAttention(3, head_dim=2))(X)
    for name, projected in (("query", q), ("key", k), ("value", v)):
        _row(console, f"{name} of “model”", projected[MODEL])
    _row(console, "its scores", (q @ k.mT)[MODEL])
    _row(console, "its weights", weights[MODEL])
    _row(console, "its output", out[MODEL], 6)
    here, there = weights[MODEL, ROUNDS], weights[ROUNDS, MODEL]
    _look(console, f"the direction counts: “model” gives “rounds” {here:.4f} and receives {there:.4f}.")


def _scaled(console: Any) -> None:
    _heading(console, 3, "Scaled", "softmax(Q Kᵀ / √d) V, here √d = √2")
    out, weights = with_example_weights(SelfAttention(3, head_dim=2))(X)
    _weights(console, weights)
    _row(console, "output of “model”", out[MODEL], 6)
    _look(console, "smaller scores make rows more even: compare “model” with its weights in 2.")


def _causal(console: Any) -> None:
    _heading(console, 4, "Causal", "no token sees the future; every step for “learns”:")
    steps = trace(*project(X), causal)
    for name in ("scores", "scaled", "masked", "weights"):
        _row(console, name, getattr(steps, name)[LEARNS])
    out, weights = with_example_weights(CausalSelfAttention(3, len(TOKENS), head_dim=2)).attention(X)
    _row(console, "output", out[LEARNS], 6)
    _weights(console, weights, FUTURE)
    _look(console, "the first token sees itself alone, and the last row is that of 3.")
    apart = naive_masking(steps.scaled, ~FUTURE) - efficient_masking(steps.scaled, ~FUTURE)
    console.print(f"Zeros after softmax and renormalised, or −inf before it: {_size(apart)} apart.")


def _head(console: Any) -> None:
    _heading(console, 5, "Head", "dropout on the weights, in training; here with probability 0.5")
    head = with_example_weights(Head(3, 2, len(TOKENS), dropout=0.5))
    _row(console, "“rounds”", head.attention(X)[1][ROUNDS])
    dropped = head.train().attention(X)[1][ROUNDS]
    _row(console, "in training", dropped)
    _look(console, f"what is left is doubled, and the row sums to {dropped.sum():.4f}: to 1 on average only.")
    check_against_pytorch()


def _several_heads(console: Any) -> None:
    _heading(console, 6, "Several heads", "the same projections, shared out between two heads")
    out, weights = multi_head(num_heads=2).attention(X)
    for number, head in enumerate(weights, start=1):
        console.print(f"Head {number}:")
        _weights(console, head, FUTURE)
    _row(console, "output of “model”", out[MODEL], 6)
    _look(console, "“model” prefers itself in head 1 and “Each” in head 2.")
    separate = SeparateHeads(d_model=3, d_out=4, num_heads=2).eval()
    apart = separate(X) - join_heads(separate)(X)
    console.print(f"A projection for each head, or one for all: {_size(apart)} apart.")


def _output(console: Any) -> None:
    _heading(console, 7, "Output projection", "W_o mixes the heads; and cross-attention")
    x = torch.randn(len(TOKENS), 4)
    layer = ProjectedMultiHeadAttention(d_model=4, num_heads=2).eval()
    _shapes(console, x=x, weights=layer.attention(x)[1], W_o=layer.W_o.weight, out=layer(x))
    console.print("“Each” and “model” as a sequence of their own that reads all six:")
    _, weights = CrossAttention(d_model=3)(X[:2], X)
    _weights(console, weights, rows=TOKENS[:2])
    _look(console, "two queries and six keys: the weights need not be square.")


def _positions(console: Any) -> None:
    _heading(console, 8, "Positions", "the tokens before the last one change places; its output moves by")
    x = torch.randn(len(TOKENS), 8)
    shuffled = x[[4, 2, 0, 3, 1, 5]]
    for name, positions in (("no positions", None), ("rotary", "rotary"), ("ALiBi", "alibi")):
        layer = PositionalAttention(8, 2, positions).eval()  # type: ignore[arg-type]
        console.print(f"{name:>17}  {_size(layer(x)[-1] - layer(shuffled)[-1])}")
    _look(console, "without positions, attention does not know the order.")


def _cached(console: Any) -> None:
    _heading(console, 9, "Cache", "one token at a time, keys and values kept")
    T = len(TOKENS)
    layer, x = CachedMultiHeadAttention(d_model=8, num_heads=2).eval(), torch.randn(T, 8)
    outs, cache = [], None
    for t in range(T):
        out, cache = layer(x[t : t + 1], cache)
        outs.append(out)
    console.print(f"{T} keys computed instead of 1 + 2 + … + {T} = {T * (T + 1) // 2}.")
    _look(console, f"the outputs are those of one call, {_size(torch.cat(outs) - layer(x)[0])} apart.")


def _transformer(console: Any) -> None:
    _heading(console, 10, "Block and GPT", "attention and an MLP, each added to its input; two blocks")
    model = SmallGPT(vocab_size=65, max_seq_len=32, d_model=16, num_heads=4, num_layers=2).eval()
    ids = torch.randint(65, (1, 32))
    logits = model(ids)
    _shapes(console, ids=ids, logits=logits)
    loss = torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:])
    _look(
        console,
        f"{sum(p.numel() for p in model.parameters()):,} parameters and nothing learned: the loss is "
        f"{loss:.2f}, and guessing evenly has ln 65 = {math.log(65):.2f}.",
    )


def _heading(console: Any, number: int, title: str, what: str) -> None:
    console.print(f"\n[bold]{number}. {title}[/bold]  {what}")


def _look(console: Any, what: str) -> None:
    console.print(f"[bold]Look:[/bold] {what}")


def _shapes(console: Any, **tensors: Tensor) -> None:
    console.print("shapes  " + "  ".join(f"{name} {tuple(x.shape)}" for name, x in tensors.items()))


def _size(difference: Tensor) -> str:
    return f"{difference.abs().max():.1e}"


def _numbers(row: Tensor, digits: int = 4) -> str:
    return " ".join(f"{value:{digits + 3}.{digits}f}" for value in row.tolist())


def _row(console: Any, name: str, row: Tensor, digits: int = 4) -> None:
    console.print(f"{name:>17}  {_numbers(row, digits)}")


def _weights(
    console: Any, weights: Tensor, hidden: Tensor | None = None, rows: Sequence[str] = TOKENS
) -> None:
    print_heatmap(console, weights, rows, TOKENS, hidden=hidden, top=1.0)
