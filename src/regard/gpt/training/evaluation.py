"""How good a model is, and what its heads are doing: what a training run writes down now and then."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from regard.gpt.model import GPT
from regard.gpt.training.corpus import Corpus
from regard.heads import HeadScores, probe, repeated
from regard.processes import Processes

TEXTS = 4  # validation windows whose attention is looked at


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean surprise at the tokens that came, in nats."""
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def validation_loss(model: GPT, corpus: Corpus, most: int, batch: int, us: Processes) -> float:
    """The mean loss over the validation tokens, at most `most` of them, shared between the processes."""
    sums = torch.zeros(2, dtype=torch.float64, device=us.device)  # loss, tokens
    for inputs, targets in corpus.judged(most, batch, slice(us.rank, None, us.count)):
        sums += torch.stack([loss(model(inputs), targets).double(), sums.new_ones(())]) * targets.numel()
    sums = us.total(sums)
    return float(sums[0] / sums[1])


@torch.no_grad()
def head_scores(model: GPT, corpus: Corpus, draws: int = 10) -> dict[str, Any]:
    """What every head does on validation text and on repeated random tokens, beside the nulls: plain data.

    For each score of `regard.heads` a table with a row a layer and a number a head, and its null: the score
    of a head that looks at everything alike.
    """
    inputs, _ = next(corpus.judged(TEXTS * corpus.context, TEXTS, slice(None)))
    tokens = max(1, min(25, (corpus.context - 1) // 4, corpus.vocab_size - 2))
    random = repeated(corpus.vocab_size, start=corpus.start, tokens=tokens, draws=draws)
    random = random.to(inputs.device)
    return {"text": _table(*probe(model.maps, inputs)), "repeats": _table(*probe(model.maps, random))}


def _table(found: list[HeadScores], nulls: list[HeadScores]) -> dict[str, Any]:
    return {
        name: {
            "heads": [[round(x, 5) for x in layer.nanmean(0).tolist()] for layer in _each(found, name)],
            "null": round(float(torch.stack(_each(nulls, name)).nanmean()), 5),
        }
        for name in HeadScores._fields
    }


def _each(layers: list[HeadScores], name: str) -> list[Tensor]:
    """One score of every layer, (B, H) each; NaN, which JSON has no word for, where nothing gave occasion."""
    return [getattr(layer, name) for layer in layers]


def sharpest(scores: dict[str, Any], name: str, text: str = "text") -> tuple[float, int, int]:
    """The highest score among the heads, with its layer and head."""
    table = scores[text][name]["heads"]
    return max((x, layer, head) for layer, row in enumerate(table) for head, x in enumerate(row))
