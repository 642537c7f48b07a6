"""One text of a capture, as it is compared with another one, and which tokens two texts share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, NamedTuple

import torch
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


class Alignment(NamedTuple):
    """The positions of the tokens that two sequences share, in order: those in a, and those in b."""

    a: Tensor  # (n,)
    b: Tensor  # (n,)


def align(a: Sequence[int], b: Sequence[int]) -> Alignment:
    """Align two sequences: by the longest run that both have, then by what lies on either side of it.

    >>> align([1, 2, 3, 9], [1, 3, 4, 9])
    Alignment(a=tensor([0, 2, 3]), b=tensor([0, 1, 3]))
    """
    # autojunk would leave out frequent tokens, such as a comma.
    blocks = SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    first, second = (
        torch.tensor([start + i for start, n in runs for i in range(n)], dtype=torch.long, device="cpu")
        for runs in ([(x.a, x.size) for x in blocks], [(x.b, x.size) for x in blocks])
    )
    return Alignment(first, second)
