"""What the model expects where the page opens, without the heads that look it up, and without random heads.

A page without its model shows these recorded runs; one with a model runs them itself (`lookup.js`). This file
knows contents and a function that runs the model; it does not know how the page draws.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from regard.recorder import Capture
from regard.show.data.contents import Contents
from regard.show.data.cuts import HeadCut
from regard.show.data.predictions import likely_tokens

LOOKS_UP = "induction"  # the label of heads that find what came after earlier copies of a token
RANDOM_SETS = 2


def record_lookup(
    contents: Contents, run_cut: Callable[[Capture, Sequence[HeadCut]], Capture]
) -> dict[str, Any] | None:
    """Record the probability of the token that the model expects after the first text's telling token.

    Returns None if the text has no predictions or no head to cut.

    Arguments:
        contents: what the page shows.
        run_cut: captures the model while it reads a capture's tokens again with heads cut.
    """
    seen, entry = contents.texts[0], contents.batch_index
    position = contents.meta["texts"][0]["telling"]
    heads = [(row["layer"], row["head"]) for row in contents[0].heads() if row["label"] == LOOKS_UP]
    heads = heads or ([] if contents.start is None else [contents.start])
    if seen.predictions is None or position is None or not heads:
        return None
    token = int(seen.predictions.likeliest[entry, position, 0])
    every = [(str(layer.key), head) for layer in seen.layers for head in layer.heads]
    others = [place for place in every if place not in heads]
    draw = random.Random(0)

    def without(cut: Sequence[tuple[str, int]]) -> float | None:
        again = run_cut(seen, [HeadCut(layer, head) for layer, head in cut])
        return _probability(again, entry, position, token)

    return {
        "position": position,
        "heads": [{"layer": layer, "head": head} for layer, head in heads],
        "off": without(heads),
        "random": [without(draw.sample(others, min(len(heads), len(others)))) for _ in range(RANDOM_SETS)],
    }


def _probability(seen: Capture, entry: int, position: int, token: int) -> float | None:
    """Return the probability of a token after a position; None if it is not among those that are known."""
    predictions, ids = seen.predictions, seen.ids
    if predictions is None:
        return None
    for likely in likely_tokens(predictions, entry, position):
        if likely["id"] == token:
            return float(likely["probability"])
    if ids is not None and position + 1 < ids.shape[1] and int(ids[entry, position + 1]) == token:
        return math.exp(-float(predictions.losses[entry, position]))
    return None
