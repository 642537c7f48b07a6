"""A model whose weights are rounded, so that a page with it can be sent, and what that changes.

Every matrix is rounded to one step for each of its rows. What a page shows of a rounded model is read by that
model, so that a text, its cuts and its predictions agree with each other. This file knows models and
captures; `model_block` packs the rounded numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from regard.gpt import GPT
from regard.heads.tables.head_sentence import TARGETS
from regard.recorder import Capture, capture
from regard.recorder.model_inputs import model_inputs
from regard.show.data.contents import Contents

STEPS = 10  # in the root mean square of a row: about 5.4 bits a weight


class RoundedModel(NamedTuple):
    """A model with rounded weights."""

    model: GPT
    steps: dict[str, Tensor]
    """The step of each row of its matrices, (rows, 1), by their names."""
    change: dict[str, Any] | None = None
    """What rounding changed, as `measure_change` says."""


def round_model(model: GPT) -> RoundedModel:
    """Return a copy of a model in which every number of a matrix is a multiple of its row's step."""
    steps, weights = {}, {}
    for name, tensor in model.state_dict().items():
        weights[name] = weight = tensor.detach().float().cpu()
        if weight.dim() == 2:
            size = weight.pow(2).mean(1, keepdim=True).sqrt()
            # The page stores steps in float16, which is 0 below 6e-8.
            steps[name] = step = (size / STEPS).clamp(1e-7, 6e4).half().float()
            weights[name] = (weight / step).round() * step
    rounded = GPT(model.config)
    rounded.load_state_dict(weights)
    rounded.tokenizer = model.tokenizer
    return RoundedModel(rounded.eval(), steps)


def can_read(seen: Capture, entry: int) -> bool:
    """Return whether a model reads the same text from an entry's tokens alone."""
    mask = seen.attention_mask
    return (
        seen.ids is not None
        and seen.target_ids is None
        and seen.pictures is None
        and not seen.edits
        and (mask is None or bool(mask[entry].all()))
    )


def read_again(contents: Contents, model: GPT) -> Contents:
    """Return the same contents as another model reads them; what it cannot read stays as it is."""
    entry = contents.batch_index
    captures = [_read(model, seen) if can_read(seen, entry) else seen for seen in contents.texts]
    return contents.with_captures(captures, contents.start)


def _read(model: GPT, seen: Capture) -> Capture:
    assert seen.ids is not None
    again = capture(
        model,
        inputs=model_inputs(model, {"input_ids": seen.ids}),
        tokenizer=model.tokenizer,
        values=True,
        predictions=True,
        contributions=True,
    )
    again.model, again.boundary = seen.model, seen.boundary
    again.seal()
    return again


def measure_change(exact: Contents, rounded: Contents) -> dict[str, Any]:
    """Measure on the first text what rounding changes: losses, likeliest tokens, scores and labels of heads.

    `score` is the largest change of a score that heads are labelled by. Losses and `same`, the share of
    positions with the same likeliest token, are None without predictions.
    """
    before, after = (contents.texts[0].predictions for contents in (exact, rounded))
    entry = exact.batch_index
    heads = list(zip(exact[0].heads(), rounded[0].heads(), strict=True))
    changes = [
        abs(new["scores"][name]["value"] - old["scores"][name]["value"])
        for old, new in heads
        for name in TARGETS.keys() & old["scores"].keys()
        if None not in (old["scores"][name]["value"], new["scores"][name]["value"])
    ]
    losses: list[float] | None = None
    same: float | None = None
    if before is not None and after is not None:
        losses = [float(x.losses[entry].mean()) for x in (before, after)]
        agree = before.likeliest[entry, :, 0] == after.likeliest[entry, :, 0]
        same = float(agree.float().mean())
    return {
        "losses": losses,
        "same": same,
        "score": max(changes, default=0.0),
        "labels": sum(old["label"] != new["label"] for old, new in heads),
    }
