"""Finds which of a model's heads a rank computes when the model is split by tensor parallelism.

A rank's attention module has some of the heads, and numbers them from 0. Its output projection knows better:
it is a `DTensor` split over its inputs, which are the outputs of the heads in the order of the model, however
queries, keys and values are packed. Where nothing shows the order, the call is refused by name. This file
knows parameters and their placements; it does not know captures.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, distributed, nn

from regard.recorder.attention_call import AttentionCall, UnreadableCall
from regard.recorder.placement import Placement


class Slice(NamedTuple):
    """The part of an axis of a parameter that this rank has."""

    axis: int
    first: int
    size: int
    total: int


def is_dtensor(x: object) -> bool:
    """Whether this is a tensor that is spread over processes, without importing what defines them."""
    return any(kind.__name__ == "DTensor" for kind in type(x).__mro__) and isinstance(x, Tensor)


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


def is_distributed() -> bool:
    """Whether this process runs with others."""
    return distributed.is_available() and distributed.is_initialized()


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
