"""Finds what a rank's attention sees of a whole text when ranks hold parts of it (context parallelism).

A rank's call shows its own queries and keys, and its output may be that of the keys of all ranks: so it is
under PyTorch's `context_parallel`, and for ring attention that somebody has registered with Transformers. The
keys and values of all ranks are gathered, and the first mask of the whole text under which they give this
rank's output is the one that it used. A wrong guess is never certified, so that the guesses are simple: what
the call says, causal, all keys; each with the documents of the text, without them, or within one rank. This
file knows positions and masks; which tokens a rank holds is said by who opens the capture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.masks.base import Mask, conjunction, full
from regard.attention.masks.named_masks import causal
from regard.attention.masks.tensor_masks import Documents, Padding
from regard.attention.masks.views import Positions
from regard.recorder.attention_call import AttentionCall
from regard.recorder.placement import Placement, Runs
from regard.recorder.rank_group import RankGroup
from regard.recorder.sources.structure_of_models.function_arguments import is_certified
from regard.recorder.storage.layer_file import storable_mask
from regard.support.override import ContextEntries


class SharedRows(NamedTuple):
    """Which tokens of the texts each rank holds, and what is known of all tokens."""

    ranks: RankGroup
    positions: tuple[Tensor, ...]  # of each rank's tokens, (rows,) and increasing
    documents: Tensor | None = None  # (B, T)
    real: Tensor | None = None  # boolean (B, T), False for padding

    @property
    def length(self) -> int:
        """The number of tokens of a whole text."""
        return sum(map(len, self.positions))

    @property
    def rows(self) -> Tensor:
        """The positions of this rank's tokens, (rows,)."""
        return self.positions[self.ranks.rank]

    def join(self, x: Tensor, dim: int) -> Tensor:
        """Return the parts of all ranks, in the order of their positions. All ranks call it."""
        lengths = [len(rows) for rows in self.positions]
        whole = torch.cat(self.ranks.gather(x, lengths, dim), dim)
        return whole.index_select(dim, torch.cat(self.positions).argsort().to(whole.device))


shared_rows: ContextEntries[SharedRows] = ContextEntries("shared_rows")
"""Which rows the ranks hold, in a context whose captures place them."""


def place_rows(call: AttentionCall) -> AttentionCall:
    """Return a call of this rank's own rows as one on the keys of all ranks, if they hold parts of a text."""
    shared = next(iter(shared_rows.get()), None)
    if shared is None or call.recurrence is not None:
        return call
    is_placed = call.placement is not None and call.placement.rows is not None  # by `regard.attend`
    if is_placed or not call.q.shape[2] == call.k.shape[2] == len(shared.rows):
        return call
    k, v = (shared.join(x.detach(), 2) for x in (call.k, call.v))
    (B, H), (G, S) = call.q.shape[:2], k.shape[1:3]
    heads = (H, tuple(range(G))) if call.placement is None else call.placement[:2]
    runs = runs_of(shared.rows)
    first: AttentionCall | None = None
    for mask in _candidate_masks(call.mask, shared, B):
        placed = call._replace(
            k=k,
            v=v,
            lse=None,
            own_lse=False,
            weights=None,
            kept=None,
            mask=Positions(mask, shared.rows, torch.arange(S, device="cpu"), S, S),
            placement=Placement(*heads, runs, runs),
            whole_mask=storable_mask(mask, (B, H, S, S), call.q.device),
        ).with_lse()
        first = first or placed
        if call.problem is not None or is_certified(placed):
            return placed
    assert first is not None
    return first


def runs_of(positions: Tensor) -> Runs:
    """Return increasing positions (rows,) as runs of consecutive ones."""
    if not len(positions):
        return ()
    cuts = (positions.diff() != 1).nonzero().flatten() + 1
    parts = positions.tensor_split(cuts.tolist())
    return tuple((int(part[0]), int(part[-1]) + 1) for part in parts)


def _candidate_masks(own: Mask, shared: SharedRows, B: int) -> list[Mask]:
    """Return what a rank may see of the whole texts if its call says `own`, the likeliest first."""
    ranks = torch.empty(1, shared.length, dtype=torch.long, device="cpu")
    for rank, rows in enumerate(shared.positions):
        ranks[0, rows] = rank
    documents = [] if shared.documents is None else [Documents(shared.documents)]
    paddings = [] if shared.real is None else [Padding(shared.real)]
    said = _widened(own.conjuncts(), shared, B)
    candidates = [] if said is None else [conjunction(said) if said else full]
    for order in (*candidates, causal, full):
        for limit in (None, *documents, Documents(ranks)):
            for padding in (None, *paddings):
                parts = [x for x in (order, limit, padding) if x is not None and x is not full]
                candidates.append(conjunction(parts) if parts else full)
    return list({str(mask): mask for mask in candidates}.values())


def _widened(parts: Sequence[Mask], shared: SharedRows, B: int) -> list[Mask] | None:
    """Return the parts of a mask of this rank's rows as parts of one of all rows; None if it has no such."""

    def widen() -> Iterator[Mask | None]:
        for part in parts:
            if part.is_documents:
                yield None if shared.documents is None else Documents(shared.documents)
            elif part.is_padding:
                yield None if shared.real is None else Padding(shared.real)
            else:
                yield part if part.shape_error(B, None, shared.length, shared.length) is None else None

    widened = list(widen())
    return None if None in widened else [part for part in widened if part is not None]
