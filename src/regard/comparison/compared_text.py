"""One text of a capture, as it is compared with another: which tokens both have, how far rows are apart.

Tokens are aligned as `difflib` aligns lines. A row of weights is compared with the row of the same token in
the other text by the total variation distance: the least mass that has to move to make one of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from regard.attention.backends.tiles import visits_between
from regard.attention.masks.views import Positions
from regard.maps import AttentionMap
from regard.maps.tile_passes.large_heads import PreciseHeads
from regard.maps.tile_passes.precision import complete_lse
from regard.spans.text_maps import text_positions

if TYPE_CHECKING:
    from regard.recorder.capture_result import Capture
    from regard.recorder.layer import Layer

TILE_NUMBERS = 1 << 20  # weights of each map that are computed at a time
MAX_SIDE = 512  # keys of a tile


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


def select_positions(m: AttentionMap, rows: Tensor, keys: Tensor) -> AttentionMap:
    """The map of some queries and some keys, numbered by increasing tensors; its rows need not sum to 1."""
    _, _, T, S = m.matrix
    if len(rows) == T and len(keys) == S:
        return m
    rows, keys = rows.to(m.device), keys.to(m.device)
    complete_lse(m, rows)  # while all the keys are here
    large, lse = m.precise
    return m._with(
        q=m.q[:, :, rows],
        k=m.k[:, :, keys],
        lse=m.lse[:, :, rows],
        mask=Positions(m.mask, rows, keys, T, S),
        precise=PreciseHeads(large, None if lse is None else lse[:, :, rows]),
    )


@torch.no_grad()
def total_variation(a: AttentionMap, b: AttentionMap, *, shared_a: bool, shared_b: bool) -> Tensor:
    """The total variation distance of every row of two maps of one shape, (B, H, T), in float64.

    `shared_a` says whether all the keys of a are in both maps. If not, what a row of a gives to its other
    keys counts in full; so does `shared_b` for b. The share of a sink logit is compared as a key's weight is.
    """
    B, H, T, S = a.matrix
    difference, mass_a, mass_b = torch.zeros(3, B, H, T, dtype=torch.float64, device=a.device)
    side = max(1, min(S, MAX_SIDE))
    height = max(1, TILE_NUMBERS // max(B * H * side, 1))
    edges = [*range(0, T, height), T], [*range(0, S, side), S]
    visits = zip(visits_between(a.mask, *edges), visits_between(b.mask, *edges), strict=True)
    for (rows, visible_to_a), (_, visible_to_b) in visits:
        # Tiles in which neither sees anything are not visited.
        for j in sorted({column.keys.start for column in (*visible_to_a, *visible_to_b)}):
            keys = slice(j, min(j + side, S))
            of_a, of_b = (m.tile(rows, keys).view(B, H, -1, keys.stop - j) for m in (a, b))
            mass_a[:, :, rows] += of_a.sum(-1)
            mass_b[:, :, rows] += of_b.sum(-1)
            difference[:, :, rows] += of_a.sub_(of_b).abs_().sum(-1)
    on_logit_a, on_logit_b = _sink_logit_share(a), _sink_logit_share(b)
    for shared, mass, m, on_logit in (
        (shared_a, mass_a, a, on_logit_a),
        (shared_b, mass_b, b, on_logit_b),
    ):
        if not shared:
            sums = (m.lse > -torch.inf).double() - on_logit  # of whole rows
            difference += (sums - mass).clamp(min=0.0)
    distance: Tensor = (difference + (on_logit_a - on_logit_b).abs()) / 2
    return distance


def _sink_logit_share(m: AttentionMap) -> Tensor:
    """What the sink logit takes of every row, (B, H, T) in float64."""
    if m.sinks is None:
        return torch.zeros_like(m.lse, dtype=torch.float64)
    return (m.sinks.double().view(-1, 1) - m.precise_lse()).exp()
