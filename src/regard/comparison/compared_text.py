"""One text of a capture, as it is compared with another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from regard.comparison.aligned_maps import select_positions
from regard.maps import AttentionMap
from regard.spans.text_maps import text_positions

if TYPE_CHECKING:
    from regard.recorder.layer import Layer
    from regard.recorder.result import Capture


@dataclass(frozen=True)
class ComparedText:
    """One text of a capture: its map in each layer, and its tokens."""

    seen: Capture
    batch: int

    def map(self, layer: Layer, positions: tuple[Tensor, Tensor] | None = None) -> AttentionMap:
        """The map of a layer, (1, H, T, S), without padding; of some queries and keys only, if given."""
        m = text_positions(self.seen, layer).select(layer.softmax_map("comparison"), self.batch)
        return m if positions is None else select_positions(m, *positions)

    def sequences(self, stack: str) -> tuple[Sequence[int] | None, Sequence[int] | None]:
        """The ids of the queries' text and of the keys' text in a stack; None where they are not known."""
        seen = self.seen
        source = self._ids(seen.ids, seen.attention_mask)
        if stack not in ("decoder", "cross") or (stack == "decoder" and seen.target_ids is None):
            return source, source
        target = self._ids(seen.target_ids, None)
        return target, source if stack == "cross" else target

    def _ids(self, ids: Tensor | None, is_token: Tensor | None) -> list[int] | None:
        if ids is None:
            return None
        row = ids[self.batch]
        numbers: list[int] = (row if is_token is None else row[is_token[self.batch]]).tolist()
        return numbers

    def texts(self) -> dict[int, str]:
        """The text of every token by its id, as far as it is known."""
        known: dict[int, str] = {}
        for ids, tokens in (
            (self.seen.ids, self.seen.tokens),
            (self.seen.target_ids, self.seen.target_tokens),
        ):
            if ids is not None and tokens is not None:
                known.update(zip(ids[self.batch].tolist(), tokens[self.batch], strict=True))
        return known
