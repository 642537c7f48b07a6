"""Lesson 3: how scores spread with the width, and the weights of one query without and with the scale."""

from __future__ import annotations

import math
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from scripts.lesson_pictures.shapes import DIM, INK, panel

RAW, SCALED = "#d1495b", "#167093"
WIDTHS = (4, 16, 64, 256)
SHOWN = 16  # keys, of 64 as in the lesson's text
ASKED = 64  # the lesson asks for the standard deviation at this width, so the picture does not say it


def draw() -> dict[str, Figure]:
    """Draw the standard deviation of scores by width, and the sorted weights of one query, both ways."""
    generator = torch.Generator().manual_seed(0)
    spreads, ax = panel(3.5)
    _spreads(ax, generator)
    torch.manual_seed(0)  # as in the lesson's text, so that the numbers are the same
    q, k = torch.randn(64, 64), torch.randn(64, 64)
    weights, ax = panel(3.5)
    _weights(ax, q @ k.mT)
    return {"picture": spreads, "weights": weights}


def _spreads(ax: Any, generator: torch.Generator) -> None:
    draws = [torch.randn(2, 100_000, d, generator=generator).prod(0).sum(-1).std().item() for d in WIDTHS]
    scaled = [std / math.sqrt(d) for std, d in zip(draws, WIDTHS, strict=True)]
    for values, colour, label, above in ((draws, RAW, "q · k", 0.9), (scaled, SCALED, "q · k / √d", -1.1)):
        ax.plot(range(len(WIDTHS)), values, color=colour, marker="o", linewidth=2)
        for index, value in enumerate(values):
            if values is draws and WIDTHS[index] == ASKED:
                continue
            ax.text(
                index - 0.12 * (above > 0),
                value + above,
                f"{value:.1f}",
                ha="center",
                va="center",
                fontsize=9,
                color=colour,
            )
        ax.text(len(WIDTHS) - 0.8, values[-1], label, color=colour, fontsize=10, va="center")
    ax.set_xticks(range(len(WIDTHS)), map(str, WIDTHS), fontsize=9)
    ax.set(xlim=(-0.3, 4.3), ylim=(-1, 18.5), yticks=[])
    ax.set_xlabel("width d of queries and keys", fontsize=9, color=INK)
    ax.set_title("standard deviation of a score", fontsize=10.5, loc="left")
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(colors=DIM)


def _weights(ax: Any, scores: Tensor) -> None:
    """Draw the largest of the weights, mean over all rows of scores (64, 64), each sorted."""
    for offset, scale, colour, label in (
        (-0.2, 1.0, RAW, "without the scale"),
        (0.2, 1 / math.sqrt(64), SCALED, "divided by √64"),
    ):
        weights = torch.softmax(scores * scale, dim=-1).sort(descending=True).values.mean(0)[:SHOWN]
        at = [index + offset for index in range(len(weights))]
        ax.bar(at, weights.tolist(), width=0.4, color=colour, label=f"{label}: largest {weights[0]:.2f}")
    ax.set(xticks=[], ylim=(0, 1), xlim=(-0.7, SHOWN - 0.4))
    ax.set_xlabel(f"the best {SHOWN} of 64 random keys; mean of 64 queries", fontsize=9, color=INK)
    ax.set_title("weights of a query, d = 64", fontsize=10.5, loc="left")
    ax.legend(fontsize=9.5, frameon=False, loc="upper right")
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(colors=DIM, labelsize=9)
