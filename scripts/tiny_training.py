"""Train a tiny model with a mistake in its attention, to see what the mistake does to the loss.

The task has a known best loss. A text is eight random letters of an alphabet of eight, twice: the first copy
cannot be guessed (ln 8 for each letter), and the second can be read off the first. A model that looks back
reaches `BEST_LOSS`. One that scores better has seen the letters that it is asked for.

    python -m scripts.tiny_training    train with every mistake that a training loss may show; ten minutes

The results are in tiny_training.json, from which `scripts.pitfalls` writes them into the pages.
"""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.checker.catalogue import CATALOGUE, THEMES, Mistake
from regard.checker.examples import ALL_TEMPLATES, NAMES, loaded_program, plant_mistake

RESULTS = Path(__file__).with_suffix(".json")
STEPS, SEEDS = 600, 3
WIDE_HEAD, WIDE_STEPS, WIDE_SEEDS = 512, 300, 8
LETTERS, HALF, WIDTH = 8, 8, 32
LENGTH = 2 * HALF - 1  # letters that the model reads; it is asked for the one after each
BEST_LOSS = math.log(LETTERS) * (HALF - 1) / LENGTH
SIZES: dict[str, dict[str, Any]] = {
    "head": {"d_model": WIDTH, "head_size": WIDTH, "max_len": LENGTH},
    "layer": {"d_model": WIDTH, "num_heads": 2, "max_len": LENGTH},
}


SHOWN_THEMES = ("scale", "softmax", "mask", "heads and batch", "query, key and value", "numbers")

# The task has no context, no input with strides, and as many key/value heads as query heads.
NOT_IN_THE_TASK = ("context-ignored", "view-of-strided", "grouped-heads-tiled")


class Losses(NamedTuple):
    """What a run ended with, in nats; None for NaN."""

    training: float | None  # the mean of the last steps, as a training loop prints it
    alone: float | None  # on prefixes, whose last letter has no future to look at: as in generation
    steps: int | None  # how many it took to come within 0.1 of `BEST_LOSS`; None if it never did


class TinyModel(nn.Module):
    """Embeddings, one attention, a feed-forward layer: the least that can look back and guess."""

    def __init__(self, attention: nn.Module, width: int = WIDTH) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.attention = attention
        self.guess = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, LETTERS))
        self.out = nn.Identity() if width == WIDTH else nn.Linear(width, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token(ids) + self.position.weight[: ids.shape[1]]  # (B, T, WIDTH)
        out = self.attention(x)
        out = out[0] if isinstance(out, tuple) else out  # a layer returns its cache, too
        return self.guess(x + self.out(out))  # (B, T, LETTERS)


def draw_texts(count: int) -> Tensor:
    """Return texts whose second half repeats the first, (count, 2 · HALF)."""
    first = torch.randint(LETTERS, (count, HALF))
    return torch.cat([first, first], dim=1)


def train(
    mistake: Mistake | None, kind: str, steps: int = STEPS, seed: int = 0, head_size: int = WIDTH
) -> Losses:
    """Train with the attention of a template, as it is or with a mistake in it."""
    sizes = SIZES[kind] | ({"head_size": head_size} if kind == "head" else {})
    source = ALL_TEMPLATES[kind] if mistake is None else plant_mistake(mistake, kind)
    torch.manual_seed(seed)
    losses: list[float] = []
    with loaded_program(source, NAMES[kind]) as attention:
        model = TinyModel(attention(**sizes), head_size)
        optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
        while len(losses) < steps and not (losses and math.isnan(losses[-1])):
            ids = draw_texts(64)
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if math.isnan(losses[-1]):
            return Losses(None, None, None)
        good = next((step for step, loss in enumerate(losses) if loss < BEST_LOSS + 0.1), None)
        return Losses(statistics.mean(losses[-50:]), loss_alone(model.eval()), good)


@torch.no_grad()
def loss_alone(model: nn.Module) -> float:
    """Return the mean loss of the letter after each prefix, given nothing but the prefix."""
    ids = draw_texts(256)
    losses = [F.cross_entropy(model(ids[:, :n])[:, -1], ids[:, n]).item() for n in range(1, LENGTH + 1)]
    return statistics.mean(losses)


def trained_kind(mistake: Mistake) -> str | None:
    """Return the template to train with a mistake, or None if its theme does not show in training."""
    shown = any(mistake in THEMES[theme] for theme in SHOWN_THEMES) and mistake.name not in NOT_IN_THE_TASK
    return next((kind for kind in SIZES if kind in mistake.plants), None) if shown else None


def median_losses(mistake: Mistake | None, kind: str) -> dict[str, float | None] | None:
    """Return the median of each number over `SEEDS` runs; None if the program fails."""
    try:
        runs = [train(mistake, kind, seed=seed) for seed in range(SEEDS)]
    except RuntimeError:  # shapes that do not fit
        return None
    medians = []
    for column in zip(*runs, strict=True):
        median = statistics.median(math.inf if value is None else value for value in column)
        medians.append(None if math.isinf(median) else round(median, 3))
    return dict(zip(Losses._fields, medians, strict=True))


def wide_losses(mistake: Mistake | None) -> list[float | None]:
    """Return the training loss of a wide head, where a missing scale shows, for each seed."""
    runs = [train(mistake, "head", WIDE_STEPS, seed, WIDE_HEAD) for seed in range(WIDE_SEEDS)]
    return [None if run.training is None else round(run.training, 3) for run in runs]


def main() -> None:
    """Train with every mistake, and write the results."""
    results: dict[str, Any] = {"best": round(BEST_LOSS, 3)}
    results["right"] = {kind: median_losses(None, kind) for kind in SIZES}
    results["wide"] = {name: wide_losses(CATALOGUE.get(name)) for name in ("right", "no-scale")}
    results["mistakes"] = {}
    for mistake in CATALOGUE.values():
        if kind := trained_kind(mistake):
            results["mistakes"][mistake.name] = {"kind": kind, "losses": median_losses(mistake, kind)}
            print(mistake.name, results["mistakes"][mistake.name], flush=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
