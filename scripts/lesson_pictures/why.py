"""Lesson 0: a language model from tokens to the next token, and the vector of "bank" in twelve sentences."""

from __future__ import annotations

import ast
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import cosine_similarity

from regard.gpt import GPT
from regard.learn.course import get_lesson
from scripts.lesson_pictures.shapes import (
    DIM,
    INK,
    KEY,
    PANEL,
    PLAIN,
    QUERY,
    VALUE,
    arrow,
    box,
    canvas,
    note,
    panel,
)

SAME, OTHER = "#167093", "#d1495b"


def draw() -> dict[str, Figure]:
    """Draw the model as a diagram, and the cosines of "bank" after each of its blocks."""
    curves, ax = panel(4.4)
    _curves(ax)
    return {"picture": _diagram(), "curves": curves}


def _diagram() -> Figure:
    figure, ax = canvas(PANEL, 4.4)
    words, places = ["over", "the", "bank"], [1.0, 2.0, 3.0]
    for word, x in zip(words, places, strict=True):
        box(ax, x, 0.3, 0.8, 0.34, word, bold=word == "bank")
        arrow(ax, (x, 0.48), (x, 0.72))
        box(ax, x, 0.9, 0.92, 0.34, "embedding", colour=KEY, size=9)
        arrow(ax, (x, 1.08), (x, 1.45))
    box(ax, 2.0, 2.13, 3.3, 1.36, "")
    box(ax, 2.0, 1.75, 3.0, 0.42, "attention: between tokens", colour=QUERY, size=9.5, bold=True)
    for x in places:
        arrow(ax, (x, 1.97), (x, 2.27))
        box(ax, x, 2.45, 0.8, 0.34, "MLP", colour=VALUE, size=9)
        arrow(ax, (x, 2.82), (x, 3.1))
    note(ax, 3.85, 2.13, "six such blocks", rotation=90)
    for x in places:
        box(ax, x, 3.28, 0.8, 0.34, "vector", colour=KEY, size=9)
    arrow(ax, (3.0, 3.46), (3.0, 3.78))
    box(ax, 3.0, 4.0, 1.5, 0.4, "next token?", colour=PLAIN, size=9.5)
    return figure


def _curves(ax: Any) -> None:
    model = GPT.from_pretrained("default")
    layers = torch.stack(
        [_vectors_of_bank(model, text) for text in _sentences()]
    )  # (12, 1 + blocks, d_model)
    similar = cosine_similarity(layers[:, None], layers[None], dim=-1)  # (12, 12, 1 + blocks)
    same_kind = torch.block_diag(torch.ones(6, 6), torch.ones(6, 6)).bool()
    pairs = same_kind & ~torch.eye(12, dtype=torch.bool)
    for kept, colour, label in (
        (pairs, SAME, "two banks of one kind"),
        (~same_kind, OTHER, "one of a river, one of money"),
    ):
        curve = similar[kept].mean(0)  # (1 + blocks,)
        ax.plot(curve, color=colour, marker="o", markersize=4, linewidth=2, label=label)
        ax.text(len(curve) - 0.85, curve[-1], f"{curve[-1]:.2f}", color=colour, fontsize=9, va="center")
    blocks = layers.shape[1] - 1
    ax.set(xlim=(-0.2, blocks + 0.75), ylim=(0.7, 1.02))
    ax.set_xticks(range(blocks + 1), ["em-\nbedding", *map(str, range(1, blocks + 1))], fontsize=9)
    ax.tick_params(labelsize=9, colors=DIM)
    ax.set_xlabel("after block", fontsize=9, color=INK)
    ax.set_title('cosine of the vectors of "bank",\nmean over twelve sentences', fontsize=10, loc="left")
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="#e6e9ee")
    ax.legend(fontsize=9, frameon=False, loc="lower left")


def _sentences() -> list[str]:
    """The sentences of the lesson's own text: six of rivers, then six of money."""
    text = get_lesson(0).text.replace("\n... ", "\n")
    lists = [text.split(f">>> {name} = ")[1].split("]")[0] + "]" for name in ("river", "money")]
    return [sentence for source in lists for sentence in ast.literal_eval(source)]


@torch.no_grad()
def _vectors_of_bank(model: GPT, text: str) -> Tensor:
    """The normed vectors of the last token, before the blocks and after each, (1 + blocks, d_model)."""
    found: list[Tensor] = []
    hooks = [model.blocks[0].register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))]
    hooks += [block.register_forward_hook(lambda _, inputs, out: found.append(out)) for block in model.blocks]
    model(torch.tensor([model.tokenizer.encode(text).ids]))
    for hook in hooks:
        hook.remove()
    return torch.stack([model.norm(x[0, -1]) for x in found])
