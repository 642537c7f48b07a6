"""Which positions of a text are padding, by the mask (B, T) of a capture: True for tokens."""

from __future__ import annotations

from torch import Tensor


def check_not_padding(mask: Tensor | None, position: int, batch: int, length: int) -> None:
    """Raise a ValueError if a position of a text of this length is padding."""
    if mask is None or mask.shape[1] != length or not -length <= position < length:
        return
    if 0 <= batch < len(mask) and not mask[batch, position]:
        tokens = mask[batch].nonzero().flatten()
        raise ValueError(
            f"position: expected one of the tokens of text {batch}, from {int(tokens[0])} to "
            f"{int(tokens[-1])}, got {position}, which is padding"
        )


def token_positions(mask: Tensor | None, batch: int, length: int) -> Tensor | slice:
    """Return the positions of a text of this length that are not padding."""
    if mask is None or mask.shape[1] != length:
        return slice(None)
    return mask[batch].nonzero().flatten().cpu()
