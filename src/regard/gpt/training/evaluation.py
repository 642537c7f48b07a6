"""The evaluation of a model during training: its validation loss, and the scores of its heads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from regard.gpt.model import GPT
from regard.gpt.training.corpus import Corpus
from regard.gpt.training.history import score_table
from regard.heads import probe, repeated
from regard.support.processes import Processes

SCORED_WINDOWS = 4  # validation windows on which the heads are scored


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy in nats of logits (B, T, V) at targets (B, T)."""
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def validation_loss(model: GPT, corpus: Corpus, max_tokens: int, batch_size: int, ranks: Processes) -> float:
    """The mean loss over at most `max_tokens` validation tokens, computed by all ranks together."""
    # float64, since sums of many thousands of tokens lose digits in float32; the tokens weigh batches of all
    # sizes.
    sums = torch.zeros(2, dtype=torch.float64, device=ranks.device)  # loss, tokens
    batches = slice(ranks.rank, None, ranks.world_size)
    for inputs, targets in corpus.validation_batches(max_tokens, batch_size, batches):
        mean = next_token_loss(model(inputs), targets).double()
        sums += torch.stack([mean, sums.new_ones(())]) * targets.numel()
    sums = ranks.sum(sums)
    return float(sums[0] / sums[1])


@torch.no_grad()
def head_scores(model: GPT, corpus: Corpus, draws: int = 10) -> dict[str, Any]:
    """The scores of every head on validation text and on repeated random tokens, with baselines: plain data.

    `draws` is the number of random sequences. `history.score_table` describes the tables.
    """
    inputs, _ = next(
        corpus.validation_batches(SCORED_WINDOWS * corpus.context_length, SCORED_WINDOWS, slice(None))
    )
    # `repeated` writes the tokens four times after a start token, and all must fit into the context.
    tokens = max(1, min(25, (corpus.context_length - 1) // 4, corpus.vocab_size - 2))
    random = repeated(corpus.vocab_size, start=corpus.bos_token_id, tokens=tokens, draws=draws)
    return {
        "text": score_table(*probe(model.maps, inputs)),
        "repeats": score_table(*probe(model.maps, random.to(inputs.device))),
    }
