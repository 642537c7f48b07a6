"""Weights of single rows and tiles as tensors, and the lse of rows in float64 from their scores alone.

What is computed here fits in memory; `sweep.py` and `overview.py` reduce maps that need not.
"""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from regard.attention.backends.tiles import exponentials
from regard.attention.masks.base import full
from regard.attention.masks.grid import Grid, grid
from regard.maps.data import MapData
from regard.maps.tile_passes.sweep import finite_lse, normalise_rows_

NORMALISED = 1 << 21  # weights of whole rows that are divided by their rows' own sums, which costs time
EXACT_NUMBERS = 1 << 18  # weights that are computed in float64 at a time: 2 MiB


def tile_weights(m: MapData, at: Grid) -> Tensor:
    """The weights of the tile `at`, (B, H, rows, keys): one matrix product and one exp.

    `at` may be the grid of a larger batch or of more heads than m has. A few whole rows are divided by their
    sums.
    """
    weights = partial_weights(m, at)
    whole_rows = isinstance(at.cols, slice) and at.cols == slice(0, m.matrix[3])
    if whole_rows and weights.numel() <= NORMALISED:
        normalise_rows_(m, weights, at.rows)
    return weights


def partial_weights(m: MapData, at: Grid) -> Tensor:
    """The weights of the tile `at` as exp(score − lse), also where the mask is narrower than that of lse."""
    B, H = m.matrix[:2]
    at = at._replace(b=at.b[:B], h=at.h[:, :H])
    logs = tile_scores(m, at, m.dtype).sub_(finite_lse(m.lse[:, :, at.rows, None])).to(m.result_dtype)
    # Masked scores are −inf, for which PyTorch's exp took fifteen times as long on a CPU (2.13, x86-64).
    return logs.exp_() if logs.requires_grad else exponentials(logs, out=logs)


def tile_scores(m: MapData, at: Grid, dtype: torch.dtype) -> Tensor:
    """The masked scores of a tile, (B, H, rows, keys), computed in `dtype`."""
    q = m.q[:, :, at.rows] if isinstance(at.rows, slice) else m.q.index_select(2, at.rows)
    s = scaled_scores(q.to(dtype), m.k[:, :, at.cols].to(dtype), m.scale, m.softcap)
    if (bias := m.mask.score_bias(at)) is not None:
        # detach: a bias that is trained must not make every weight that is read carry a graph.
        s.add_(bias.detach())
    return s if m.mask is full else s.masked_fill_(~m.mask.allowed(at), -torch.inf)


def scaled_scores(q: Tensor, k: Tensor, scale: float, softcap: float | None = None) -> Tensor:
    """The scores of queries (B, H, T, D) with keys (B, G, S, D), scaled and capped: (B, H, T, S)."""
    q = q * scale if softcap is None else q  # below a soft cap the products are scaled, which rounds once
    (B, H, T, D), (_, G, S, _) = q.shape, k.shape
    # The heads that share a key/value head lie one below another, so that its keys are read once.
    s = (q.reshape(B, G, H // max(G, 1) * T, D) @ k.mT).view(B, H, T, S)
    return s if softcap is None else s.mul_(scale / softcap).tanh_().mul_(softcap)


@torch.no_grad()
def exact_lse(m: MapData, rows: Tensor) -> Tensor:
    """Compute the log-sum-exp of whole rows in float64 from their scores alone, (B, H, rows).

    The map's own lse is not used, so that it can be compared with the result.
    """
    B, H, _, S = m.matrix
    group = H // max(m.k.shape[1], 1)
    lse = m.q.new_empty(B, H, len(rows), dtype=torch.float64)
    # Few heads at a time, so that their numbers stay in the cache.
    step = max(1, EXACT_NUMBERS // max(1, group * len(rows) * S)) * group
    for b, h in product(range(B), range(0, H, max(step, 1))):
        batch, heads = slice(b, b + 1), slice(h, min(h + step, H))
        part = m.select(batch, heads)
        at = grid(rows, slice(0, S), part.matrix, part.device)
        found = tile_scores(part, at, torch.float64).logsumexp(-1)
        if part.sinks is not None:
            found = torch.logaddexp(found, part.sinks.double().view(-1, 1))
        lse[batch, heads] = found
    return lse
