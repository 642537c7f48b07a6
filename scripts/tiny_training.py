"""Train a tiny model with a mistake in its attention, to see what the mistake does to the loss.

The task has a known best loss. A text is eight random letters of an alphabet of eight, twice: the first copy
cannot be guessed (ln 8 for each letter), and the second can be read off the first. A model that looks back
reaches `BEST_LOSS`. One that scores better has seen the letters that it is asked for.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.checker.examples import ALL_NAMES, ALL_TEMPLATES, loaded_program, plant_mistake
from regard.checker.mistakes.mistake import Mistake

LETTERS, HALF, WIDTH = 8, 8, 32
LENGTH = 2 * HALF - 1  # letters that the model reads; it is asked for the one after each
BEST_LOSS = math.log(LETTERS) * (HALF - 1) / LENGTH
SIZES: dict[str, dict[str, Any]] = {
    "head": {"d_model": WIDTH, "head_size": WIDTH, "max_len": LENGTH},
    "layer": {"d_model": WIDTH, "num_heads": 2, "max_len": LENGTH},
    "rotary": {"d_model": WIDTH, "num_heads": 2},
    "alibi": {"d_model": WIDTH, "num_heads": 2},
}


class Losses(NamedTuple):
    """What a run ended with, in nats: NaN if it diverged."""

    training: float  # the mean of the last steps, as a training loop prints it
    alone: float  # on prefixes, whose last letter has no future to look at: as in generation
    steps: int | None  # how many it took to come within 0.1 of `BEST_LOSS`; None if it never did


class TinyModel(nn.Module):
    """Embeddings, one attention, a feed-forward layer: the least that can look back and guess."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.attention = attention
        self.guess = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, LETTERS))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token(ids) + self.position.weight[: ids.shape[1]]  # (B, T, WIDTH)
        out = self.attention(x)
        return self.guess(x + (out[0] if isinstance(out, tuple) else out))  # (B, T, LETTERS)


def draw_texts(count: int) -> Tensor:
    """Return texts whose second half repeats the first, (count, 2 · HALF)."""
    first = torch.randint(LETTERS, (count, HALF))
    return torch.cat([first, first], dim=1)


def train_source(source: str, kind: str, steps: int, seed: int = 0) -> Losses:
    """Train with the attention of a program, which is a template or has a mistake planted in it."""
    torch.manual_seed(seed)
    with loaded_program(source, ALL_NAMES[kind]) as attention:
        model = TinyModel(attention(**SIZES[kind]))
        optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
        losses = []
        for _ in range(steps):
            ids = draw_texts(64)
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        good = next((i for i, loss in enumerate(losses) if loss < BEST_LOSS + 0.1), None)
        return Losses(sum(losses[-50:]) / 50, loss_alone(model), good)


@torch.no_grad()
def loss_alone(model: nn.Module) -> float:
    """Return the mean loss of the letter after each prefix, given nothing but the prefix."""
    ids = draw_texts(256)
    losses = [F.cross_entropy(model(ids[:, :n])[:, -1], ids[:, n]).item() for n in range(1, LENGTH + 1)]
    return sum(losses) / LENGTH


def train_mistake(mistake: Mistake | None, kind: str, steps: int, seed: int = 0) -> Losses:
    """Train a template with a mistake, or as it is."""
    source = ALL_TEMPLATES[kind] if mistake is None else plant_mistake(mistake, kind)
    return train_source(source, kind, steps, seed)
