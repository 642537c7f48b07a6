"""The mask of a layer in the saved file: ranges of visible keys, and the bias that it adds to the scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.attention.masks.base import Grid, grid
from regard.maps import AttentionMap, LinearAttentionMap
from regard.show.saved.packed_arrays import Array

DENSE_LIMIT = 1 << 26  # numbers of a bias that depends on more than the distance


def pack_mask(m: AttentionMap | LinearAttentionMap) -> list[Array]:
    """Pack the visible keys, as ranges for each query, and the bias that the mask adds to the scores."""
    T = m.matrix[2]
    # 512 queries at a time, so that no T×S table of booleans is made.
    chunks = [_visible_ranges(m, slice(first, min(first + 512, T))) for first in range(0, T, 512)]
    heads = max((len(counts) for counts, _ in chunks), default=1)
    counts = np.concatenate(
        [np.broadcast_to(c, (heads, c.shape[1])) for c, _ in chunks] or [np.zeros((1, 0))], 1
    )
    # Ranges are computed a chunk of queries at a time: put those of one head together.
    by_head = [[ranges[min(h, len(ranges) - 1)] for _, ranges in chunks] for h in range(heads)]
    flat = np.concatenate([np.concatenate(ranges) for ranges in by_head if ranges] or [np.zeros((0, 2))])
    offsets = np.concatenate([[0], counts.reshape(-1).cumsum()])
    arrays = [Array("offsets", "u32", offsets.astype("<u4")), Array("ranges", "u32", flat.astype("<u4"))]
    return arrays + _pack_bias(m) if m.mask.biased else arrays


def _visible_ranges(
    m: AttentionMap | LinearAttentionMap, rows: slice
) -> tuple[NDArray[Any], list[NDArray[Any]]]:
    """Find the ranges of visible keys of each query.

    Returns the number of ranges of each query, (heads, rows), and each head's ranges, (n, 2). A mask that is
    the same for all heads counts as one head.
    """
    allowed = m.mask.allowed(_grid(m, rows))
    allowed = allowed.expand(1, allowed.shape[1], rows.stop - rows.start, m.matrix[3])
    allowed = allowed[0].cpu()  # (heads, rows, S)
    edge = allowed.new_zeros(*allowed.shape[:2], 1)
    steps = torch.cat([edge, allowed, edge], -1).to(torch.int8).diff(dim=-1)  # 1 where a range begins
    counts = (steps == 1).sum(-1).numpy()
    starts, ends = (steps == 1).nonzero(), (steps == -1).nonzero()
    pairs = torch.stack([starts[:, -1], ends[:, -1]], -1)
    return counts, [pairs[starts[:, 0] == h].numpy() for h in range(len(allowed))]


def _pack_bias(m: AttentionMap | LinearAttentionMap) -> list[Array]:
    """Pack the mask's bias: one number for each distance if it depends on nothing else, or all numbers."""
    _, _, T, S = m.matrix
    first = m.mask.score_bias(_grid(m, slice(0, 1)))
    assert first is not None
    heads = first.shape[1]
    if heads * T * S > DENSE_LIMIT:
        raise ValueError(
            f"mask {m.mask}: expected a bias of at most {DENSE_LIMIT:,} numbers to save in a page, "
            f"got {heads} × {T} × {S}: serve the capture instead, with seen.show() or regard inspect"
        )
    added = m.mask.score_bias(_grid(m, slice(0, T)))
    assert added is not None
    dense = added.detach().expand(1, heads, T, S)[0].float().cpu().clamp(min=-1e30)  # (heads, T, S)
    relative = torch.cat([dense[:, :, 0].flip(1), dense[:, 0, 1:]], 1)  # by key − query, from 1 − T to S − 1
    index = torch.arange(S, device="cpu") - torch.arange(T, device="cpu")[:, None] + T - 1
    if bool(torch.equal(relative[:, index], dense)):
        return [Array("relative", "f32", relative.numpy())]
    return [Array("dense", "f32", dense.numpy())]


def _grid(m: AttentionMap | LinearAttentionMap, rows: slice) -> Grid:
    return grid(rows, slice(0, m.matrix[3]), m.matrix, m.device)
