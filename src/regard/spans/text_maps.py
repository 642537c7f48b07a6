"""The map of one text of a capture: of one sequence of a batch, without its padding.

A capture is used as it is described by `regard.recorder`, which this file does not import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from regard.maps import AttentionMap
from regard.maps.tile_passes.precision import select_region

if TYPE_CHECKING:
    from regard.recorder.capture_result import Capture
    from regard.recorder.layer import Layer


class TextPositions(NamedTuple):
    """Which queries and which keys of a layer are tokens, boolean (B, T) and (B, S); None if all are."""

    queries: Tensor | None
    keys: Tensor | None

    def select(self, m: AttentionMap, b: int) -> AttentionMap:
        """The map of sequence b, (1, H, tokens, tokens), without padding before or after its text."""
        one = m.select(slice(b, b + 1), slice(0, m.matrix[1]))
        part = select_region(one, *self.extents(b, *m.matrix[2:]))
        assert isinstance(part, AttentionMap)
        return part

    def extents(self, b: int, T: int, S: int) -> tuple[slice, slice]:
        """Where the text of sequence b lies among T queries and S keys: from its first token to its last."""
        queries, keys = (
            slice(0, length) if is_token is None else _extent(is_token[b])
            for is_token, length in zip(self, (T, S), strict=True)
        )
        return queries, keys


def text_positions(seen: Capture, layer: Layer) -> TextPositions:
    """Which positions of a layer are tokens of its text."""
    is_token = seen.attention_mask
    _, _, T, S = layer.shape
    # The attention mask of a capture is that of the encoder's input; the decoder's is not known.
    if is_token is None or layer.stack == "decoder":
        return TextPositions(None, None)
    keys = is_token if is_token.shape[1] == S else None
    if layer.stack == "cross" or keys is None:
        return TextPositions(None, keys)
    return TextPositions(keys[:, S - T :], keys)


def _extent(is_token: Tensor) -> slice:
    numbers = is_token.nonzero().flatten()
    # A text of padding alone has no first token.
    return slice(int(numbers[0]), int(numbers[-1]) + 1) if len(numbers) else slice(0, 0)


def choose_text(seen: Capture, batch: int | None, name: str = "batch") -> int:
    """The number of the sequence to look at: `batch`, or the only one."""
    if not seen.layers:
        raise ValueError("this capture has no layer: nothing ran inside the block")
    B = seen.layers[0].shape[0]
    if batch is None:
        if B != 1:
            raise ValueError(f"{name}: expected which of the {B} texts of this capture to take, as {name}=0")
        return 0
    # True is an int to Python.
    if isinstance(batch, bool) or not isinstance(batch, int) or not 0 <= batch < B:
        raise ValueError(f"{name}: expected the number of a text, from 0 to {B - 1}, got {batch!r}")
    return batch


def choose_stack(seen: Capture, stack: str | None) -> list[Layer]:
    """The layers of a stack, by default of the only one."""
    stacks = list(dict.fromkeys(layer.stack for layer in seen.layers))
    if stack is None and len(stacks) == 1:
        return list(seen.layers)
    if stack not in stacks:
        named = ", ".join(map(repr, stacks))
        raise ValueError(f"stack: expected one of those of this model ({named}), got {stack!r}")
    return [layer for layer in seen.layers if layer.stack == stack]
