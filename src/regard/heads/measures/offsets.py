"""Attention to a fixed offset: what all queries give to the key n tokens back, whatever it is, for every n.

The best n is looked for in some rows and then measured in all. The weights at the offsets 0 and 1 and on the
latest keys are those of every query. This file knows maps; it does not know tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.masks.named_masks import causal, window
from regard.maps import AttentionMap, LinearAttentionMap

MOST_ROWS = 256
MAX_WEIGHTS, MAX_WEIGHTS_ON_GPU = 1 << 22, 1 << 26  # that are computed at a time


def sample_rows(T: int, device: torch.device) -> Tensor:
    """Some of T rows, or all; random, since every nth row could fall in step with a text that repeats."""
    # A generator of its own: the user's random numbers stay as they are, and a second run gives the same
    # rows.
    order = torch.randperm(T, generator=torch.Generator().manual_seed(0), device="cpu")
    return order[:MOST_ROWS].sort().values.to(device)


def offset_sums(m: AttentionMap, rows: Tensor, count: bool = False) -> Tensor:
    """The weights of some rows of a map (B, H, T, S), summed by offset n = q − k: (B, H, S).

    With `count`, the number of weights above 0, which of uniform attention are the visible keys.
    """
    B, H, _, S = m.matrix
    sums = m.lse.new_zeros(B, H, S)
    offsets = torch.arange(S, device=m.device)
    most = MAX_WEIGHTS if m.device.type == "cpu" else MAX_WEIGHTS_ON_GPU
    for part in torch.split(rows, max(1, most // max(1, B * H * S))):
        keys = (part + m.first_position).unsqueeze(-1) - offsets  # (rows, S): the key at each offset
        tile = m.tile(part, slice(0, S)).to(sums)
        tile = (tile > 0).to(sums) if count else tile
        # Gathered: on a GPU scatter_add_ takes longer, and its bits differ from run to run.
        by_offset = tile.gather(3, keys.clamp(0, S - 1).expand(B, H, -1, -1))
        sums += by_offset.where(keys >= 0, 0.0).sum(2)
    return sums


def latest_mass(m: AttentionMap, n: int) -> Tensor:
    """The weight of every query on the n latest keys, its own included, (B, H, T)."""
    return m.mass(causal & window(n))


def weight_back(m: AttentionMap | LinearAttentionMap, back: int) -> Tensor:
    """The weight of every query on the key `back` positions before it, (B, H, T); 0 without one."""
    entries = m.diagonal(m.first_position - back)
    first = max(0, back - m.first_position)
    return torch.nn.functional.pad(entries, (first, m.matrix[2] - first - entries.shape[-1]))
