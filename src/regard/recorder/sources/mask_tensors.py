"""Recognises mask tensors: finds the simplest mask rule that is equal to a tensor, as `causal & padding(…)`.

A tensor is read once, however many layers share it. Code that makes a mask tensor from a description can
store the description in `origins`; it is used if every entry of the tensor agrees with it.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from regard.attention.masks.base import Mask, full, grid
from regard.attention.masks.named_masks import Window, causal
from regard.attention.masks.tensor_masks import Padding, Relative, TensorMask

# All rows at once would take several copies of a mask of T×S entries.
CHUNK_ROWS = 1024


class MaskReading(NamedTuple):
    """The meaning of a mask tensor for T queries and S keys."""

    rule: Mask
    keys: int
    """The number of keys that have been written: a static cache has room for more."""
    empty_rows: Tensor | None
    """True for queries without a visible key, broadcastable to (B, H, T); None if there are none."""
    softly_masked: bool
    """Whether finite biases alone mask every key of one of those rows, so that the row has a softmax."""


class Origin(NamedTuple):
    """The description that a mask tensor was made from: a rule for the first `keys` keys."""

    rule: Mask
    keys: int


origins: MutableMapping[Tensor, Callable[[], Origin]] = WeakIdKeyDictionary()
"""Functions that describe mask tensors; they are called only if a tensor is read."""
_readings: MutableMapping[Tensor, tuple[int, int, Tensor | tuple[int, int], MaskReading]] = (
    WeakIdKeyDictionary()
)
"""What was read, the sizes, and the tensor's version and number of masked entries, or a copy of it."""


def read_mask(mask: Tensor, T: int, S: int) -> MaskReading:
    """Read a tensor that broadcasts to (B, H, T, S): True or a finite bias means visible.

    T and S are the numbers of queries and keys. The result is cached for as long as the tensor is unchanged.
    If gradients are on and the mask requires them, they flow through the rule.
    """
    reading = _read_detached(mask, T, S)
    if mask.requires_grad and torch.is_grad_enabled():
        whole = mask.view((1,) * (4 - mask.ndim) + mask.shape)[..., :S].expand(-1, -1, -1, S)
        return reading._replace(rule=as_rule(whole, T), keys=S)
    return reading


def _read_detached(mask: Tensor, T: int, S: int) -> MaskReading:
    """Read a mask tensor without its gradient."""
    cached = _readings.get(mask)
    if cached is not None and cached[:2] == (T, S) and _is_unchanged(mask, cached[2]):
        return cached[3]
    whole = mask.detach().view((1,) * (4 - mask.ndim) + mask.shape)
    # One entry may stand for all keys.
    whole = whole[..., :S].expand(-1, -1, -1, S)
    masked = masked_entries(whole)
    empty = masked.all(-1)
    empty_rows = empty if bool(empty.any()) else None
    softly_masked = mask.is_floating_point() and bool((empty & whole.isfinite().all(-1)).any())
    origin = origins[mask]() if mask in origins else None
    if origin is not None and _agrees(origin, masked):
        reading = MaskReading(*origin, empty_rows, softly_masked)
    else:
        reading = MaskReading(as_rule(whole, T), S, empty_rows, softly_masked)
    # In inference mode PyTorch counts no writes, so that a copy has to show them.
    _readings[mask] = (T, S, mask.clone() if mask.is_inference() else _version(mask), reading)
    return reading


def _version(mask: Tensor) -> tuple[int, int]:
    """Return what tells whether a mask tensor has changed, but for inference mode, which counts no writes.

    Some other ways of writing are not counted either, so the number of masked entries is compared as well.
    """
    return mask._version, int(masked_entries(mask.detach()).sum())


def _is_unchanged(mask: Tensor, before: Tensor | tuple[int, int]) -> bool:
    if isinstance(before, Tensor):
        return torch.equal(mask, before)
    return not mask.is_inference() and _version(mask) == before


def masked_entries(mask: Tensor) -> Tensor:
    """Return where a mask tensor masks: at False, −inf, or about the lowest number of its dtype.

    In a row of nothing but such low numbers, the greatest stays visible if there is only one.
    """
    if mask.dtype == torch.bool:
        return ~mask
    low = mask <= torch.finfo(mask.dtype).min / 2
    rows = low.all(-1, keepdim=True)
    if not bool(rows.any()):
        return low
    greatest = mask == mask.amax(-1, keepdim=True)
    # The softmax of such a row is 1 at its greatest entry.
    return low & ~(rows & greatest & (greatest.sum(-1, keepdim=True) == 1) & (mask.shape[-1] > 1))


def _agrees(origin: Origin, masked: Tensor) -> bool:
    """Whether a rule over the first keys masks exactly the entries `masked` (B, H, T, S)."""
    B, H, T, _ = masked.shape
    if origin.rule.biased or origin.rule.shape_error(B, H, T, origin.keys) is not None:
        return False
    if not bool(masked[..., origin.keys :].all()):
        return False
    for first in range(0, T, CHUNK_ROWS):
        rows = range(first, min(first + CHUNK_ROWS, T))
        ours = origin.rule.tile(rows, range(origin.keys), (B, H, T, origin.keys), device=masked.device)
        theirs = masked[:, :, first : first + CHUNK_ROWS, : origin.keys]
        if not bool((ours != theirs).all()):
            return False
    return True


def as_rule(mask: Tensor, T: int | None = None) -> Mask:
    """Return the simplest mask equal to a tensor that broadcasts to (B, H, T, S).

    Booleans say which keys are visible, and floats are added to the scores. T is the number of queries, which
    a tensor with one row for all of them does not show.
    """
    mask = _narrow(mask.view((1,) * (4 - mask.ndim) + mask.shape))
    # Some models mask with the lowest finite number instead of −inf.
    masked = masked_entries(mask)
    allowed = _narrow(~masked)
    named = _named_mask(allowed)
    rule = TensorMask(allowed) if named is None else named
    if mask.dtype == torch.bool or bool((masked | (mask == 0)).all()):
        return rule
    # One row for several queries goes by the key and not by the distance.
    bias = _by_distance(mask, masked) if mask.shape[2] > 1 or T == 1 else None
    if bias is None:
        return TensorMask(mask.masked_fill(masked, -torch.inf))
    return bias if rule is full else rule & bias


def _by_distance(bias: Tensor, masked: Tensor) -> Mask | None:
    """Return the mask for biases (B, H, T, S) that depend, where visible, only on the distance; else None."""
    _, H, T, S = bias.shape
    # A learned bias keeps its gradient only as the tensor that it is.
    if bias.requires_grad:
        return None
    # A few rows hold every distance: the last, and in each text the first that has a visible key.
    visible = ~masked.all(-1).all(1)  # (B, T)
    rows = torch.cat([visible.int().argmax(-1), visible.new_tensor([T - 1], dtype=torch.long)])
    distance = torch.arange(S, device=bias.device) - torch.arange(T, device=bias.device)[:, None] + T - 1
    sample = bias[:, :, rows].masked_fill(masked[:, :, rows], -torch.inf)  # (B, H, rows, S)
    index = distance[rows].expand_as(sample).transpose(0, 1).reshape(H, -1)
    table = bias.new_full((H, T + S - 1), -torch.inf)
    table.scatter_reduce_(1, index, sample.transpose(0, 1).reshape(H, -1), "amax")
    table.masked_fill_(table == -torch.inf, 0.0)  # distances that are masked everywhere
    for first in range(0, T, CHUNK_ROWS):
        chunk = slice(first, first + CHUNK_ROWS)
        if not bool((masked[:, :, chunk] | (table[:, distance[chunk]] == bias[:, :, chunk])).all()):
            return None
    return Relative(table, S - 1)  # the queries are the last of the positions


def as_bias(bias: Tensor) -> Mask:
    """Return the mask that adds biases (B, H, T, S) to the scores, by distance if they depend only on it."""
    if bias.requires_grad:
        return TensorMask(bias)
    if not bool(bias.any()):
        return full
    if bias.shape[2] == 1:
        return TensorMask(bias)
    by_distance = _by_distance(bias, torch.zeros_like(bias, dtype=torch.bool))
    return TensorMask(bias) if by_distance is None else by_distance


def _named_mask(allowed: Tensor) -> Mask | None:
    """Return the named mask that allows exactly these entries (B, H, T, S), or None."""
    _, H, T, S = allowed.shape
    if bool(allowed.all()):
        return full
    # No named mask is another one in another head.
    if H > 1:
        return None
    if T == 1:
        return Padding(allowed[:, 0, 0])
    visible = allowed.any(2)[:, 0]  # (B, S) the keys that some query sees
    for order in (causal,) if T == S else (causal.top_left, causal):
        ordered = order.allowed(grid(slice(0, T), slice(0, S), (1, 1, T, S), allowed.device))  # (1, 1, T, S)
        is_token = visible | ~ordered.any(2)[:, 0]  # a key after every query may be a token
        if torch.equal(allowed, ordered & is_token[:, None, None]):
            return order if bool(is_token.all()) else order & Padding(is_token)
    if T != S:
        return None
    size = int(allowed.sum(-1).max())
    windowed = causal & Window(size)
    near = windowed.allowed(grid(slice(0, T), slice(0, S), (1, 1, T, S), allowed.device))  # (1, 1, T, S)
    if torch.equal(allowed, near & visible[:, None, None]):
        return windowed if bool(visible.all()) else windowed & Padding(visible)
    return None


def _narrow(mask: Tensor) -> Tensor:
    """Reduce the batch, head and query axes along which a tensor does not vary to one entry."""
    for dim in (0, 1, 2):
        first = mask.narrow(dim, 0, 1)
        # An expanded axis is equal without a look, for which a GPU would be asked.
        if mask.shape[dim] > 1 and (mask.stride(dim) == 0 or bool((mask == first).all())):
            mask = first
    return mask
