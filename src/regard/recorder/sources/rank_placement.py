"""Finds which heads and which rows of a model's layer a rank's attention call has, where ranks share them.

Under tensor parallelism a rank's attention module has some of the heads, and numbers them from 0. Its output
projection knows better: it is a `DTensor` split over its inputs, which are the outputs of the heads in the
order of the model, however queries, keys and values are packed. Where nothing shows the order, the call is
refused by name.

Under context parallelism a rank's call shows its own queries and keys, and its output may be that of the keys
of all ranks: so it is under PyTorch's `context_parallel`, and for ring attention that somebody has registered
with Transformers. The keys and values of all ranks are gathered, and the first mask of the whole text under
which they give this rank's output is the one that it used. A wrong guess is never certified, so that the
guesses are simple: what the call says, causal, all keys; each with the documents of the text, without them,
or within one rank. Which tokens a rank holds is said by who opens the capture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn

from regard.attention.masks.base import Mask, conjunction, full
from regard.attention.masks.named_masks import causal
from regard.attention.masks.tensor_masks import Documents, Padding
from regard.attention.masks.views import Positions
from regard.recorder.attention_call import AttentionCall, UnreadableCall
from regard.recorder.certificates.output_comparison import is_certified
from regard.recorder.placement import Placement, Runs
from regard.recorder.rank_group import RankGroup, is_distributed, is_dtensor
from regard.recorder.storage.layer_file import storable_mask
from regard.support.override import ContextEntries


class Slice(NamedTuple):
    """The part of an axis of a parameter that this rank has."""

    axis: int
    first: int
    size: int
    total: int


def local_slice(parameter: Any) -> Slice | None:
    """Return which part of a `DTensor` this rank has; None if it has all of it. A ValueError if in pieces."""
    mesh = parameter.device_mesh
    split = [
        (dim, placement)
        for dim, placement in enumerate(parameter.placements)
        # A mesh of one process splits nothing.
        if not placement.is_replicate() and mesh.size(dim) > 1
    ]
    if not split:
        return None
    (dim, placement), *others = split
    if others or type(placement).__name__ != "Shard":
        raise ValueError(f"it is split as {parameter.placements}")
    axis = placement.dim % parameter.ndim
    total, ranks, rank = parameter.shape[axis], mesh.size(dim), mesh.get_local_rank(dim)
    # DTensor cuts as `torch.chunk` does: the last ranks may have less, or nothing.
    step = -(-total // ranks)
    first = min(rank * step, total)
    return Slice(axis, first, min(step, total - first), total)


def place_heads(
    module: nn.Module, parent: nn.Module | None, call: AttentionCall
) -> AttentionCall | UnreadableCall:
    """Return a call of a module with the numbers that its heads have in the model.

    `parent` is the module around it, which has the projections if the module itself has no parameters.
    """
    owner = module if parent is None or any(True for _ in module.parameters()) else parent
    weights = {name: x for name, x in owner.named_parameters() if is_dtensor(x)}
    if not weights:
        return _unknown("its parameters do not say how they are split") if _is_split(owner, call) else call
    try:
        slices = {name: part for name, x in weights.items() if (part := local_slice(x)) is not None}
    except ValueError as error:
        return _unknown(str(error))
    if not slices:
        return call
    _, H, _, E = call.output.shape
    # The output projection: a matrix split over its inputs, which are the heads of all ranks or of one.
    widths = {
        part
        for name, part in slices.items()
        if weights[name].ndim == 2 and part.axis == 1 and H * E in (part.size, part.total)
    }
    if len(widths) != 1:
        return _unknown("no output projection, or several, is split over the heads of this rank")
    (part,) = widths
    if part.total == H * E:
        return call  # every rank has all heads, and splits their output afterwards
    if part.first % E or part.total % E:
        return _unknown(f"its output projection is cut inside a head, at {part.first} of {part.total}")
    heads, total = range(part.first // E, part.first // E + H), part.total // E
    kv_heads = _kv_heads(owner, heads, total, call.k.shape[1])
    if kv_heads is None:
        return _unknown(
            f"it has {call.k.shape[1]} key/value heads for heads {heads[0]} to {heads[-1]} of {total}"
        )
    runs = () if call.placement is None else (call.placement.rows, call.placement.keys)
    return call._replace(heads=tuple(heads), placement=Placement(total, kv_heads, *runs))


def _is_split(module: nn.Module, call: AttentionCall) -> bool:
    """Whether ranks share the heads of a module though no parameter says so, as in older Transformers.

    Its config then has as many heads as some of the processes have together.
    """
    total, H = getattr(getattr(module, "config", None), "num_attention_heads", None), call.q.shape[1]
    if not is_distributed() or not isinstance(total, int):
        return False
    return 0 < H < total and total % H == 0 and distributed.get_world_size() % (total // H) == 0


def _unknown(reason: str) -> UnreadableCall:
    return UnreadableCall(f"nothing shows which of the model's heads this rank has: {reason}")


def _kv_heads(module: nn.Module, heads: range, total: int, count: int) -> tuple[int, ...] | None:
    """Return the numbers in the model of the `count` key/value heads that some heads read here."""
    declared = getattr(getattr(module, "config", None), "num_key_value_heads", None)
    # As many as the model declares, of which several ranks may have the same; or other ones on every rank.
    for kv_total in (declared, count * total // len(heads)):
        if isinstance(kv_total, int) and kv_total > 0 and total % kv_total == 0 and len(heads) % count == 0:
            numbers = sorted({head * kv_total // total for head in heads})
            if len(numbers) == count:
                return tuple(numbers)
    return None


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
