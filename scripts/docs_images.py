"""Draws the figures of the how-to and explanation pages, with the included model: docs/images/*.png.

    python -m scripts.docs_images [--out FOLDER]

The sessions on those pages compute the numbers that the figures show.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import torch

import regard
from regard.gpt import GPT
from regard.reproduce.chart import Chart
from regard.reproduce.chart import draw as draw_charts
from scripts import cut_heads

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parent.parent
SENTENCE = "The lamp is lit and the ships come home. "
STORY = (
    "Mary Ellis kept the lamp at Farrow Point. The lamp at Farrow Point was old, and Mary Ellis kept it lit. "
    * 2
)
SCORES = ("previous_token", "induction", "local", "sink")
TRAINED, UNTRAINED, BASELINE = "#b8430f", "#5d5f69", "#9a9ba3"
KINDS = {"induction": TRAINED, "previous_token": "#2b5f8a", "sink": BASELINE}
NAMED_HEADS = {"4.0": (-9, -3), "4.2": (-9, -3), "3.3": (-9, 3), "2.2": (0, 10)}


def induction_head(model: GPT) -> Any:
    """The induction head on a sentence that is repeated six times."""
    return regard.capture(model, text=SENTENCE * 6).figure(4, 0)


def one_head(model: GPT) -> Any:
    """The same head on two sentences, with tokens on both axes."""
    return regard.capture(model, text=SENTENCE * 2).figure(4, 0)


def causal_masks(model: GPT) -> Any:
    """The causal mask of 4 queries and 12 keys, aligned to the first and to the last key."""
    figure, axes = plt.subplots(1, 2, figsize=(7.5, 1.9), layout="constrained")
    for ax, mask, title in zip(
        axes,
        (regard.causal.top_left, regard.causal),
        ("is_causal=True: aligned to the first key", "with a cache: aligned to the last key"),
        strict=True,
    ):
        mask.plot(4, 12, ax=ax)
        ax.set_title("")  # the mask's own name
        ax.set_title(title, fontsize=10, loc="left")
    return figure


def composed_mask(model: GPT) -> Any:
    """A mask made of three rules."""
    return ((regard.causal & regard.window(6)) | regard.prefix(2)).plot(16).figure


def baselines(model: GPT) -> Any:
    """Four scores of every head of the included model and of one with random weights, with baselines."""
    trained = regard.capture(model, text=STORY)
    torch.manual_seed(0)
    untrained = regard.capture(GPT(model.config).eval(), inputs={"input_ids": trained.ids})
    figure, ax = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
    for table, colour, shift, name in (
        (trained.heads(), TRAINED, -0.13, "trained"),
        (untrained.heads(), UNTRAINED, 0.13, "random weights"),
    ):
        for number, score in enumerate(SCORES):
            values = [row.scores[score].value for row in table]
            label = name if number == 0 else None
            ax.plot(
                [number + shift] * len(values),
                values,
                "o",
                color=colour,
                alpha=0.55,
                ms=5,
                mew=0,
                label=label,
            )
    for number, score in enumerate(SCORES):
        null = trained.heads()[0, 0].scores[score].null
        label = "uniform baseline" if number == 0 else None
        ax.plot([number - 0.35, number + 0.35], [null, null], color=BASELINE, lw=2, label=label, zorder=0)
    ax.set_xticks(range(len(SCORES)), [score.replace("_", " ") for score in SCORES])
    ax.set_ylabel("score of each of 24 heads")
    ax.set_ylim(0, 1)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=9, loc="upper left")
    return figure


def weights_and_values(model: GPT) -> Any:
    """The weights of a head with a sink, and the share of each key in the lengths of weight times value."""
    seen = regard.capture(model, text=STORY, values=True)
    weights, values = seen[2].to_dense()[0, 0], seen.layer(2).values
    assert values is not None
    parts = weights * values[0, 0].norm(dim=-1)
    shown, tokens = slice(0, 32), seen.tokens[0][:32] if seen.tokens else None
    figure, axes = plt.subplots(1, 2, figsize=(9.0, 4.8), layout="constrained")
    for ax, matrix, title in (
        (axes[0], weights, "attention weights"),
        (axes[1], parts / parts.sum(-1, keepdim=True), "weight × length of the value, rows sum to 1"),
    ):
        regard.plot(matrix[shown, shown], tokens, ax=ax, title=title)
    return figure


def scores_and_effects(model: GPT) -> Any:
    """The highest score of every head, and what cutting the head costs: the numbers of `cut_heads.json`."""
    results = json.loads(cut_heads.RESULTS.read_text(encoding="utf-8"))["default"]
    figure, ax = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    ax.axhline(0, color=BASELINE, lw=1, zorder=0)
    for kind, colour in KINDS.items():
        scores = {place: score for place, score in results["scores"].items() if _highest(score) == kind}
        effects = [results["importance"][place] for place in scores]
        ax.errorbar(
            [score[kind] for score in scores.values()],
            [effect["value"] for effect in effects],
            yerr=(
                [effect["value"] - effect["low"] for effect in effects],
                [effect["high"] - effect["value"] for effect in effects],
            ),
            fmt="o",
            color=colour,
            ms=6,
            mew=0,
            elinewidth=1.2,
            label=kind.replace("_", " "),
        )
    for place, offset in NAMED_HEADS.items():
        point = (max(results["scores"][place].values()), results["importance"][place]["value"])
        align = "center" if offset[0] == 0 else "right"
        ax.annotate(place, point, offset, textcoords="offset points", ha=align, fontsize=9)
    ax.set_xlim(0, 1)
    ax.set_xlabel("the head's highest score")
    ax.set_ylabel("rise of the loss without the head\n(nats a repeated token)")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=9, loc="upper left", title="which score it is", alignment="left")
    return figure


def instability(model: GPT) -> Any:
    """Loss, largest score and least entropy of a run that becomes unstable, without and with QK-norm."""
    runs = {}
    for name in ("plain", "qk-norm"):
        path = ROOT / "benchmarks" / "results" / f"instability-cuda-{name}-2026-11-18.json"
        runs[name.replace("plain", "without QK-norm").replace("qk-norm", "with")] = json.loads(
            path.read_text()
        )
    alarm = {"first alarm": runs["without QK-norm"]["first_alarm"]}
    losses = {
        name: [[i, sum(run["losses"][i - 9 : i + 1]) / 10] for i in range(9, len(run["losses"]), 5)]
        for name, run in runs.items()
    }
    readings = [
        {name: [[x["step"], max(x[measure], 1e-6)] for x in run["readings"]] for name, run in runs.items()}
        for measure in ("max_score", "least_entropy")
    ]
    return draw_charts(
        [
            Chart("loss, mean of 10 steps", "step", "nats", losses, marks=alarm),
            Chart("largest score", "step", "", readings[0], marks=alarm, log_y=True),
            Chart("least entropy of a head", "step", "nats, from 10⁻⁶", readings[1], marks=alarm, log_y=True),
        ]
    )


def _highest(scores: dict[str, float]) -> str:
    """The name of the highest score of a head."""
    return max(scores, key=scores.__getitem__)


FIGURES: dict[str, Callable[[GPT], Any]] = {
    "how-to-induction": induction_head,
    "how-to-head": one_head,
    "how-to-causal": causal_masks,
    "how-to-mask": composed_mask,
    "how-to-instability": instability,
    "explanation-baselines": baselines,
    "explanation-values": weights_and_values,
    "explanation-effects": scores_and_effects,
}


def main() -> None:
    """Draw every figure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    out: Path = parser.parse_args().out
    model = GPT.from_pretrained("default")
    for name, draw in FIGURES.items():
        draw(model).savefig(out / f"{name}.png", dpi=110)
        plt.close("all")
        print(out / f"{name}.png")


if __name__ == "__main__":
    main()
