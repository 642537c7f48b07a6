"""Launches the Triton kernel that pools an attention matrix: how bins become blocks, and back.

A kernel works on blocks whose size is a power of two. Bins that fill such blocks are used as they are; others
(1,000 queries in 7 bins, say) are laid out with gaps, so that each bin begins at a block or a fraction of
one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.backends.triton import configs
from regard.attention.backends.triton.launch import descriptor, padded, scores_of, unsupported_scores_reason
from regard.attention.masks.bands import Band
from regard.attention.masks.base import Mask
from regard.attention.masks.block_lists import cut_into_blocks, find_visible_blocks
from regard.attention.masks.memo import memoize_on_mask


def unsupported_reason(q: Tensor, k: Tensor, mask: Mask, rows: int, cols: int) -> str | None:
    """Why the kernel cannot pool to rows × cols bins, in a phrase, or None if it can."""
    for bins, length, what in ((rows, q.shape[-2], "queries"), (cols, k.shape[-2], "keys")):
        if not 1 <= bins <= length:
            return f"needs no more bins than {what}, not {bins} for {length}"
    return unsupported_scores_reason(q, mask)


def pool(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    mask: Mask,
    scale: float,
    softcap: float | None,
    rows: int,
    cols: int,
) -> tuple[Tensor, Tensor]:
    """The weights exp(score − lse) of q (B, H, T, D) on k (B, G, S, D), pooled to rows × cols bins.

    `lse` (B, H, T) is the row log-sum-exp. Returns two tensors (B, H, rows, cols) in float32: the mass
    (summed over the keys of a bin, averaged over its queries) and the peak (the largest weight). The edges of
    the bins are floor(i · T / rows) and floor(j · S / cols).
    """
    from regard.attention.backends.triton.pool_kernel import pool_kernel

    B, H, T, D = q.shape
    G, S = k.shape[1], k.shape[2]
    scores = scores_of(mask, scale, softcap, T, S, q.device)
    q = -q if scores.negative else q
    (width,) = padded(D)
    config = configs.choose("pool", width, q.dtype)
    across, down = _layout(S, cols, config.cols, q.device), _layout(T, rows, config.rows, q.device)
    lists, band, parts = None, scores.band, across.parts
    if band is None or down.places is not None or across.places is not None:
        # Lists hold blocks in no order of keys, so the parts of a bin are combined afterwards.
        shape = (B, H, T, S)
        lists = memoize_on_mask(
            scores.mask,
            (shape, rows, cols, config, q.device),
            lambda: find_visible_blocks(
                scores.mask, shape, down.blocks(T, q.device)[0], *across.blocks(S, q.device)
            ),
        ).by_row()
        band, parts = Band(), 1
    bin_rows, bin_cols = rows * down.parts, cols * across.parts // parts
    mass, peak = torch.zeros(2, B, H, bin_rows, bin_cols, dtype=torch.float32, device=q.device)
    edges = torch.arange(rows + 1, device=q.device) * T // rows
    share = (1 / edges.diff()).repeat_interleave(down.parts)
    # Triton launches on the current device.
    with torch.cuda.device_of(q):  # type: ignore[no-untyped-call]
        pool_kernel[(-(-bin_rows // down.bins) * B * H,)](
            q, k, descriptor(k, config.tma, config.cols, width), lse.contiguous(), mass, peak, share,
            scores.slopes, lists, band, down.places, across.places,
            q.stride(), k.stride(), H, H // G, T, S, scores.factor, scores.cap, bin_rows, bin_cols,
            D, width, config.rows, config.cols, down.bins, across.bins, parts, configs.PRECISION,
            num_warps=config.warps, num_stages=config.stages,
        )  # fmt: skip
    if (bin_rows, bin_cols) == (rows, cols):
        return mass, peak
    by_part = (B, H, rows, bin_rows // rows, cols, bin_cols // cols)
    return mass.view(by_part).sum((3, 5)), peak.view(by_part).amax((3, 5))


class Layout(NamedTuple):
    """How the bins of one axis lie in blocks: several to a block, or several blocks to a bin."""

    bins: int  # bins in a block
    parts: int  # blocks in a bin
    size: int  # places in a block
    places: Tensor | None  # the index in each place, −1 for a gap; None: place n holds index n

    def blocks(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """The indices in each block (blocks, size), gaps filled with a neighbour, and which exist."""
        if self.places is None:
            return cut_into_blocks(length, self.size, device)
        index = self.places.view(-1, self.size)
        return index.cummax(-1).values.clamp(min=0), index >= 0


def _layout(length: int, bins: int, block: int, device: torch.device) -> Layout:
    """The layout of `length` indices in `bins` bins, for blocks of `block` places."""
    longest = -(-length // bins)
    room = min(block, 1 << (longest - 1).bit_length())  # the places of a bin in its block
    parts = -(-longest // room)
    layout = Layout(block // room, parts, block, None)
    if length % bins == 0 and longest == room * parts:
        return layout
    edges = torch.arange(bins + 1, device=device) * length // bins
    place = edges[:-1, None] + torch.arange(room * parts, device=device)  # (bins, places)
    index = place.where(place < edges[1:, None], -1).flatten()
    gap = index.new_full((-len(index) % block,), -1)
    return layout._replace(places=torch.cat([index, gap]).int())
