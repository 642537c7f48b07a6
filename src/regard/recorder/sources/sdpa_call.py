"""The arguments of PyTorch's fused attention, as an `AttentionCall` of (B, H, T, D)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.attention.masks.base import Mask, full
from regard.attention.masks.named_masks import causal
from regard.recorder.attention_call import AttentionCall
from regard.recorder.sources.mask_tensors import (
    MaskReading,
    masked_entries,
    read_mask,
)


def given_scale(q: Tensor, scale: float | None) -> float:
    # PyTorch's own formula: in float64 it is not the same number as D ** -0.5.
    return 1.0 / math.sqrt(max(q.shape[-1], 1)) if scale is None else float(scale)


def attention_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    lse: Tensor | None = None,
) -> AttentionCall:
    """Return a call of the function as an `AttentionCall`, whatever its rank."""
    lead = leading_shape(query, key)
    q, k, v, out = (four_dimensions(x, lead) for x in (query, key, value, output))
    k, v = equal_heads(k, v)
    T, S = q.shape[2], k.shape[2]
    mask: Mask | None = None
    keys, empty_rows, softly_masked = S, None, False
    if attn_mask is not None:
        whole = _as_4d(attn_mask, query.ndim, lead)
        mask, keys, empty_rows, softly_masked = read_written(whole, k, T)
        k, v = k[:, :, :keys], v[:, :, :keys]
    if is_causal:
        # PyTorch's `is_causal` aligns queries with the first keys, Regard's `causal` with the last.
        order = causal if k.shape[2] == T else causal.top_left
        mask = order if mask is None else mask & order
    own_lse = lse is not None
    # PyTorch's kernels return an lse of 0 for rows without a visible key.
    if lse is not None and empty_rows is not None:
        lse = lse.masked_fill(empty_rows, -torch.inf)
    mask = full if mask is None else mask
    return AttentionCall(
        q,
        k,
        v,
        out,
        lse,
        mask,
        given_scale(query, scale),
        own_lse=own_lse,
        softly_masked_rows=softly_masked,
        unplaced=several_axes(query.shape),
    )


def several_axes(shape: Sequence[int]) -> str | None:
    """Return why queries (…, T, D) with more than two axes before T are not those of texts and heads."""
    if len(shape) < 5:
        return None
    # An axis of length 1 cannot stand for windows.
    lead = [n for n in shape[:-2] if n > 1]
    if len(lead) < 3:
        return None
    sizes = "×".join(map(str, shape))
    return f"its queries have {len(shape)} dimensions ({sizes}), which may be windows or gathered tokens"


def leading_shape(q: Tensor, k: Tensor) -> tuple[int, ...]:
    """Return the dimensions before (H, T, D) of q and k, broadcast."""
    # Nearly always, and `broadcast_shapes` takes a tenth of a millisecond.
    if min(q.ndim, k.ndim) < 4 or q.shape[:-3] == k.shape[:-3]:
        return tuple(q.shape[:-3])
    return tuple(torch.broadcast_shapes(q.shape[:-3], k.shape[:-3]))  # type: ignore[no-untyped-call]


def four_dimensions(x: Tensor, lead: tuple[int, ...]) -> Tensor:
    """Return (T, D), (B, T, D) of one head, or (…, H, T, D) as (B, H, T, D)."""
    if x.ndim == 2:
        return x[None, None]
    if x.ndim == 3:
        return x[:, None]
    if x.ndim > 4:
        return x.expand(*lead, *x.shape[-3:]).reshape(-1, *x.shape[-3:])
    return x if x.shape[:1] == lead else x.expand(*lead, -1, -1, -1)


def equal_heads(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Repeat the heads of keys or values until both have equally many."""
    heads = max(k.shape[1], v.shape[1])
    k = k.repeat_interleave(heads // k.shape[1], 1) if k.shape[1] < heads else k
    return k, v.repeat_interleave(heads // v.shape[1], 1) if v.shape[1] < heads else v


def repeats_heads(x: Tensor, group: int) -> bool:
    """Whether every `group` neighbouring heads of x (B, H, T, D) are the same."""
    heads = x.reshape(len(x), -1, group, *x.shape[2:])
    return bool((heads == heads[:, :, :1]).all())


def read_written(mask: Tensor, k: Tensor, T: int) -> MaskReading:
    """Read a mask tensor of T queries, for those of the keys that have been written."""
    reading = read_mask(mask, T, k.shape[2])
    reach = _written_keys(mask, k, T)
    return read_mask(mask[..., :reach], T, reach) if reach < reading.keys else reading


def _written_keys(mask: Tensor, k: Tensor, T: int) -> int:
    """Return how many keys have been written: a static cache holds zeros after them, which are masked.

    Each of the T queries has written a key: padding at the end, whose keys may be zeros too, is no room.
    """
    S = k.shape[2]
    # A last key that is not all zeros was written, and so were those before it.
    if mask.shape[-1] != S or S <= T or bool(k[:, :, -1:].any()):
        return S
    visible = (~masked_entries(mask)).flatten(0, -2).any(0).nonzero()
    reach = max(T, int(visible[-1]) + 1) if len(visible) else S
    # Keys that are masked and not zero are padding, not room in a static cache.
    return S if bool(k[:, :, reach:].any()) else reach


def _as_4d(mask: Tensor, ndim: int, lead: tuple[int, ...]) -> Tensor:
    """Return a mask that broadcasts to (…, T, S) as one that broadcasts to (B, H, T, S)."""
    if ndim == 3 and mask.ndim == 3:
        return mask[:, None]
    if mask.ndim <= 4:
        return mask
    return mask.expand(*lead, *mask.shape[-3:]).reshape(-1, *mask.shape[-3:])
