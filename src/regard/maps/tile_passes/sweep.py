"""Diagonals of a map, and what statistics of rows end with."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.maps import kernels
from regard.maps.data import MapData

EMPTY_ROW_LSE = 1e30  # stands for the lse of a row without visible keys: exp(score − 1e30) is 0, and not NaN
LOG_ZERO = -1e4  # the logarithm of a weight of 0: exp gives 0, and 0 · −1e4 is 0 where 0 · −inf is NaN
STATISTICS_ROUNDING = 1e-3  # error of a row sum; kernels for half precision reach half of it
PAIRS, PAIRS_ON_GPU = 256, 1024  # entries of a diagonal that a mask is evaluated for at a time


class RowStatistics(NamedTuple):
    """Statistics of every row, and the attention that every key receives."""

    entropy: Tensor  # (B, H, T)
    distance: Tensor  # (B, H, T)
    received: Tensor  # (B, H, S)
    max_score: Tensor  # (B, H, T) −inf for a row without visible keys, NaN without a softmax


def finite_lse(lse: Tensor) -> Tensor:
    """lse with a huge number for rows without visible keys, so that score − lse is never inf − inf."""
    return lse.masked_fill(lse == -torch.inf, EMPTY_ROW_LSE)


def finish_statistics(m: MapData, stats: RowStatistics, total: Tensor) -> RowStatistics:
    """Entropy and distance as they are when every row sums to 1, for weights that sum to `total` (B, H, T).

    A distance of 1,000 keys multiplies what rounding adds to a row by 1,000. The largest scores were
    logarithms of weights up to here.
    """
    whole = _softmax_sum(m, total, slice(None), STATISTICS_ROUNDING)
    entropy = (stats.entropy + total * whole.log()) / whole
    return stats._replace(entropy=entropy, distance=stats.distance / whole, max_score=m.lse + stats.max_score)


def normalise_rows_(m: MapData, weights: Tensor, rows: slice | Tensor) -> None:
    """Divide whole rows of weights (B, H, rows, S) by their own sums, as a softmax does, in place.

    Scores that were computed again differ from those behind lse in their last digits, and so does the sum of
    a row from 1.
    """
    rounding = 128 * torch.finfo(weights.dtype).eps
    whole = _softmax_sum(m, weights.sum(-1), rows, rounding)
    weights.div_(whole.to(weights.dtype).unsqueeze(-1))


def _softmax_sum(m: MapData, total: Tensor, rows: slice | Tensor, rounding: float) -> Tensor:
    """The sums (B, H, rows) by which to divide rows whose weights sum to `total`: sink logits count, too.

    It is 1 where the sum is further from 1 than `rounding`: the lse was wrong, which has to show.
    """
    if m.sinks is not None:
        total = total + (m.sinks.to(m.lse).view(-1, 1) - finite_lse(m.lse[:, :, rows])).exp_()
    return total.where((total - 1.0).abs() <= rounding, 1.0)


def diagonal(m: MapData, rows: slice, keys: slice) -> Tensor:
    """The weights of each of some rows on the key of the same number, (B, H, rows): one dot product each."""
    allowed, bias = _mask_diagonal(m, rows, keys)
    weights = kernels.diagonal(m, rows, keys)
    if weights is None:
        B, H, G = *m.q.shape[:2], m.k.shape[1]
        # These products are few, and adding them up in another order than the kernel of lse costs digits.
        dtype = m.dtype if m.device.type == "mps" else torch.float64  # which MPS does not have
        q, k = m.q[:, :, rows].to(dtype), m.k[:, :, keys].to(dtype)
        q = q.reshape(B, G, H // max(G, 1), *q.shape[2:])  # (B, G, group, N, D)
        s: Tensor = torch.linalg.vecdot(q, k.unsqueeze(2)).flatten(1, 2) * m.scale
        if m.softcap is not None:
            s = m.softcap * torch.tanh(s / m.softcap)
        if bias is not None:
            s = s + bias
        weights = (s - finite_lse(m.lse[:, :, rows])).to(m.result_dtype).exp_()
    if isinstance(allowed, Tensor):
        return weights.masked_fill_(~allowed, 0.0)
    return weights if allowed else weights.zero_()


def _mask_diagonal(m: MapData, rows: slice, keys: slice) -> tuple[Tensor | bool, Tensor | None]:
    """The mask and its bias along a diagonal, (B or 1, H or 1, N), or one answer if it is a band."""
    _, _, T, S = m.matrix
    band = None if m.mask.biased else m.mask.band(T, S)
    if band is not None:
        return band.holds(keys.start - rows.start - (S - T)), None
    allowed, biases = [], []
    # In runs, as a mask answers for tiles.
    run = PAIRS if m.mask.biased or m.device.type != "cuda" else PAIRS_ON_GPU
    for i in range(0, rows.stop - rows.start, run):
        r, c = (slice(span.start + i, min(span.start + i + run, span.stop)) for span in (rows, keys))
        tile = m.mask.tile(r, c, m.matrix, device=m.device)
        bias = m.mask.bias(r, c, m.matrix, device=m.device)
        allowed.append(tile.diagonal(dim1=-2, dim2=-1))
        if bias is not None:
            biases.append(bias.detach().diagonal(dim1=-2, dim2=-1))
    if not allowed:
        return True, None
    return torch.cat(allowed, -1), torch.cat(biases, -1) if biases else None
