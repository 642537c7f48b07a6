"""The loss of lesson 10, next to the losses that mistakes give."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.learn.judges.tables.first_run import error_outcome
from regard.learn.judges.tables.inputs import input_generator
from regard.learn.judges.tables.variants import Variant, find_variant
from regard.learn.judges.tables.verdicts import largest_difference
from regard.learn.lesson import Outcome

TOLERANCE = 1e-4
SHIFTED = "predicted = logits[:, :-1], targets = ids[:, 1:]"
LOSS_HINTS = (
    (
        "Expected target size",
        "cross_entropy takes rows of logits: logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()",
    ),
)


def judge_loss(function: Any, module: ModuleType) -> Outcome:
    """Compare the learner's loss with the right one and with that of each mistake."""
    name = "next_token_loss"
    generator = input_generator()
    logits, ids = torch.randn(2, 5, 7, generator=generator), torch.randint(7, (2, 5), generator=generator)
    try:
        loss = function(logits, ids)
    except NotImplementedError:
        raise
    except Exception as error:
        return error_outcome(name, error, module, LOSS_HINTS)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        said = f"expected one number, the mean over all places, got {describe_form(loss)}"
        return Outcome(name, "wrong", said, hint="return the mean of the losses: .mean()")
    right = _cross_entropy(logits[:, :-1], ids[:, 1:])
    if largest_difference(loss, right) < TOLERANCE:
        return Outcome(name, "done", "each place is asked for the token after it.")
    variants = (
        Variant(_cross_entropy(logits, ids), "targets-not-shifted"),
        Variant(_cross_entropy(logits[:, :-1], ids[:, :-1]), "targets-not-shifted"),
        Variant(_cross_entropy(logits[:, 1:], ids[:, 1:]), "targets-not-shifted"),
        Variant(_cross_entropy(logits[:, 1:], ids[:, :-1]), "targets-shifted-back"),
        Variant(_cross_entropy(logits.softmax(-1)[:, :-1], ids[:, 1:]), "softmax-before-loss"),
        *_wrong_losses(logits, ids, right),
    )
    if wrong := find_variant(name, loss.reshape(()), variants, TOLERANCE):
        return wrong
    return Outcome(
        name,
        "wrong",
        "the loss is not the mean cross-entropy of each place with the token after it",
        hint=SHIFTED,
    )


def _wrong_losses(logits: Tensor, ids: Tensor, right: Tensor) -> list[Variant]:
    """Return losses of the right tokens that are computed wrongly, and of the wrong ones."""
    places = ids[:, 1:].numel()

    def mean_of(scores: Tensor) -> Tensor:
        return -scores[:, :-1].gather(-1, ids[:, 1:, None]).mean()

    logarithms = (
        "log_softmax over the last axis, the words of the vocabulary: torch.log_softmax(logits, dim=-1)"
    )
    first = slice(0, len(ids) - 1)
    return [
        Variant(-right, said="the sign is lost: a loss is minus the logarithm", hint="loss = -logp…"),
        Variant(
            right * places, said="this is the sum over all places; the loss is their mean", hint=".mean()"
        ),
        Variant(
            right * places / ids.numel(),
            said="the sum is divided by all places; the last of each text has no next token",
            hint="divide by the number of places that have a next token, or take .mean()",
        ),
        Variant(
            mean_of(logits),
            said="these are the logits themselves, without the logarithm of softmax",
            hint=logarithms,
        ),
        Variant(
            mean_of(logits.softmax(-1)),
            said="these are probabilities without their logarithm",
            hint=logarithms,
        ),
        *(
            Variant(
                mean_of(logits.log_softmax(axis)), said="the softmax runs along a wrong axis", hint=logarithms
            )
            for axis in (0, 1)
        ),
        Variant(
            _cross_entropy(logits, ids.roll(-1, 1)),
            said=".roll goes round: the last place is asked for the first token, and has no next one",
            hint=SHIFTED,
        ),
        Variant(
            _cross_entropy(logits[:, :-1], ids.roll(1, 1)[:, :-1]),
            "targets-shifted-back",
        ),
        Variant(
            _cross_entropy(logits[:, first], ids[:, 1:][:, first]),
            said="len(ids) is the number of texts; their length is ids.shape[1]",
            hint="range(ids.shape[1] - 1)",
        ),
        Variant(
            _cross_entropy(logits[:, :-1].mT.reshape(-1, logits.shape[-1])[None], ids[:, 1:].reshape(1, -1)),
            said="the numbers of a place are torn apart: the vocabulary has to stay the last axis",
            hint="logits[:, :-1].flatten(0, 1)",
        ),
    ]


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def describe_form(answer: Any) -> str:
    """Return the shape of a tensor, or the type of something else."""
    return str(tuple(answer.shape)) if isinstance(answer, Tensor) else type(answer).__name__
