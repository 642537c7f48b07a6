"""Next-token predictions as the page shows them: those of one position, and how two runs differ.

This file knows `Predictions` and the tokens of a text; it knows neither models nor how the page draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from regard.recorder import Predictions

MOST_CHANGED = 10  # tokens that are listed


def mean_loss(predictions: Predictions | None, entry: int) -> float | None:
    """Return the mean loss of a batch entry; None if no token of it was predicted."""
    if predictions is None:
        return None
    loss = float(predictions.losses[entry].nanmean())  # the loss of a padded position is NaN
    return loss if math.isfinite(loss) else None


def summary(predictions: Predictions | None, entry: int) -> dict[str, Any] | None:
    """Describe the predictions of a batch entry in a few numbers, or return None if there are none."""
    if predictions is None:
        return None
    losses = predictions.losses[entry]
    return {
        "loss": mean_loss(predictions, entry),
        "tokens": int(losses.isfinite().sum()),
        "likeliest": predictions.likeliest.shape[-1],
    }


def prediction(
    predictions: Predictions | None, entry: int, tokens: Sequence[str] | None, position: int
) -> dict[str, Any]:
    """Return what the model expects after a position: the likeliest tokens, and the one that follows.

    Raises KeyError if there are no predictions, or none for this position.
    """
    if predictions is None:
        raise KeyError("predictions: this text was read without a language model's output, so it has none")
    T = predictions.likeliest.shape[1]
    if not 0 <= position < T:
        raise KeyError(f"position: expected a number from 0 to {T - 1}, got {position}")
    return {
        "position": position,
        "likeliest": likely_tokens(predictions, entry, position),
        "next": _next(predictions, entry, tokens, position),
    }


def likely_tokens(predictions: Predictions, entry: int, position: int) -> list[dict[str, Any]]:
    """Return the likeliest tokens after a position: their ids, texts and probabilities."""
    pairs = zip(
        predictions.likeliest[entry, position].tolist(),
        predictions.probabilities[entry, position].tolist(),
        strict=True,
    )
    return [{"id": token, "token": predictions.word(token), "probability": p} for token, p in pairs]


def _next(
    predictions: Predictions, entry: int, tokens: Sequence[str] | None, position: int
) -> dict[str, Any] | None:
    """Return the token that follows a position with its loss, probability and rank; None if none does."""
    if position >= predictions.losses.shape[1]:
        return None
    loss = float(predictions.losses[entry, position])
    if not math.isfinite(loss):
        return None
    return {
        "token": None if tokens is None else tokens[position + 1],
        "probability": math.exp(-loss),
        "rank": int(predictions.ranks[entry, position]),
        "loss": loss,
    }


def changes(before: Predictions | None, after: Predictions | None, entry: int) -> dict[str, Any] | None:
    """Compare two runs on the same tokens: the mean loss of both, and the tokens that changed the most.

    `most` lists, by position, tokens whose probability (given what comes before them) changed the most.
    Returns None if one of the runs has no predictions.
    """
    if before is None or after is None:
        return None
    known = before.losses[entry].isfinite() & after.losses[entry].isfinite()  # (T - 1,)
    p, q = ((-x.losses[entry]).exp().masked_fill(~known, 0) for x in (before, after))
    change = q - p
    strongest = change.abs().argsort(descending=True, stable=True)[:MOST_CHANGED].tolist()
    losses = [float(x.losses[entry][known].mean()) if bool(known.any()) else None for x in (before, after)]
    return {
        "before": losses[0],
        "after": losses[1],
        "most": [
            {"position": position + 1, "before": float(p[position]), "after": float(q[position])}
            for position in strongest
            if float(change[position]) != 0
        ],
    }
