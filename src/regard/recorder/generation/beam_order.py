"""Into which order a beam search has put the batch, as all layers together show it."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.recorder.generation.strips import StripStep


def batch_order(steps: list[StripStep], ids: Tensor | None) -> tuple[Tensor | None, str | None]:
    """Return which old sequence each batch entry continues, None for its own; and a problem, if any.

    - `steps`: how each layer goes on.
    - `ids` (B, T): the tokens so far, which say whether two sequences are interchangeable.
    """
    if all(step.new is None for step in steps):
        return None, None
    # The layers of a model may be on several devices.
    matches = [match.cpu() for step in steps if (match := step.match()) is not None]
    common = torch.stack(matches).all(0)  # (B, B)
    if not bool(common.any(1).all()):
        return None, "its batch was reordered, and not in the same way in all layers"
    order = common.int().argmax(1)
    if ids is None:
        unclear = common & ~torch.nn.functional.one_hot(order, len(order)).bool()
    else:  # sequences with the same past tokens are interchangeable
        unclear = common & (ids[order][:, None] != ids[None]).any(-1)
    doubt = "beams changed places, and the layers that were captured do not show which went where"
    return order, doubt if bool(unclear.any()) else None
