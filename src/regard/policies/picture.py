"""Draws budgets against the attention that is kept, with Matplotlib; it knows numbers and names only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regard.support.cell_output import new_figure, release

BASELINES = {"random": ("#888888", ":"), "best": ("#000000", "--")}
# Okabe and Ito's colours, which readers with any colour vision can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")


def draw_curve(
    policies: Sequence[str],
    budgets: Sequence[int],
    means: Sequence[Sequence[float]],
    enough: Sequence[Sequence[float]],
    losses: dict[str, list[float]] | None = None,
) -> Any:
    """Draw the mean share, the share of heads that keep 95 % and, if given, the loss, over the budgets.

    `means` and `enough` have a row for each policy with a number for each budget; `losses` are the changes of
    a model's loss for each policy, one for each budget.
    """
    panels = 2 if losses is None else 3
    figure = new_figure("a picture of cache policies", (4.2 * panels, 3.4))
    axes = figure.subplots(1, panels)
    colours = iter(COLOURS * (1 + len(policies) // len(COLOURS)))
    for n, name in enumerate(policies):
        colour, line = BASELINES[name] if name in BASELINES else (next(colours), "-")
        style: dict[str, Any] = {"color": colour, "linestyle": line, "marker": "o", "markersize": 3}
        axes[0].plot(budgets, means[n], label=name, **style)
        axes[1].plot(budgets, enough[n], label=name, **style)
        if losses is not None and name in losses:
            axes[2].plot(budgets, losses[name], label=name, **style)
    titles = ("attention kept (mean over heads)", "heads that keep 95 %", "rise of the loss (nats)")
    for ax, title in zip(axes, titles, strict=False):
        ax.set_xscale("log", base=2)
        ax.set_xticks(budgets, [f"{budget:,}" for budget in budgets])
        ax.minorticks_off()
        ax.set_xlabel("keys in the cache")
        ax.set_title(title, fontsize=10)
        ax.grid(alpha=0.3)
    axes[0].set_ylim(0, 1.02)
    axes[1].set_ylim(0, 1.02)
    axes[0].legend(fontsize=8)
    return release(figure)
