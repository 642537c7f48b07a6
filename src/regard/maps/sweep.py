"""One pass over a map, tile by tile: what its statistics are made of. Never more than a tile in memory.

A tile's log weights are score − lse; where nothing stands between the product and the softmax, that is a
single product of [scale·q, −lse] and [k, 1].
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from regard.attention.backends.problem import AttentionProblem
from regard.attention.backends.tiles import fold, parts, score, visits
from regard.attention.masks.base import Mask

if TYPE_CHECKING:
    from regard.maps.map import AttentionMap

NOTHING = 1e30  # stands for the lse of a row that sees nothing: exp(score − 1e30) is 0, and not NaN
ROUNDING = 1e-3  # by which the sum of a row may be off; kernels for half precision come to half of it


class Patch(NamedTuple):
    """The logarithms of the weights of a tile, −inf where a query may not look."""

    batch: slice
    heads: slice
    rows: slice
    keys: slice
    logs: Tensor  # (b, h, rows, keys)


class RowStatistics(NamedTuple):
    entropy: Tensor  # (B, H, T)
    distance: Tensor  # (B, H, T)
    received: Tensor  # (B, H, S)


def anchored(lse: Tensor) -> Tensor:
    """lse with a huge number for rows that see nothing, so that score − lse is never inf − inf."""
    return lse.masked_fill(lse == -torch.inf, NOTHING)


def patches(m: AttentionMap, mask: Mask | None = None) -> Iterator[Patch]:
    """Every tile of the map that is not empty, under its own mask or a narrower one."""
    B, H, T, S = m.matrix
    if 0 in (B, H, T, S):
        return
    problem = AttentionProblem(m.q, m.k, m.k[..., :0], mask or m.mask, m.scale, m.softcap, None, 0.0)
    for batch, heads, _, part in parts(problem, m.dtype):
        lse = anchored(m.lse[batch, heads, :, None])
        if m.softcap is None:
            q = torch.cat([part.q * part.scale, -lse], -1)
            k = torch.cat([part.k.mT, part.k.new_ones(*part.k.shape[:2], 1, S)], -2).mT  # lies as part.k does
            part = part._replace(q=q, k=k, scale=1.0)
        b, h = part.q.shape[:2]
        for rows, columns in visits(part):
            q = fold(
                part.q[:, :, rows] * part.scale if part.scale != 1.0 else part.q[:, :, rows], part.k.shape[1]
            )
            for column in columns:
                logs = score(part, q, rows, column).scores.view(b, h, rows.stop - rows.start, -1)
                if m.softcap is not None:
                    logs.sub_(lse[:, :, rows])
                # Where scores are large this was float64; their logarithms are small where weights are not 0.
                yield Patch(batch, heads, rows, column.keys, logs.to(m.result_dtype))


def statistics(m: AttentionMap) -> RowStatistics:
    """Row entropies, row distances and what each key receives, from one pass."""
    B, H, T, S = m.matrix
    entropy, distance, total = (m.lse.new_zeros(B, H, T) for _ in range(3))
    received = m.lse.new_zeros(B, H, S)
    for batch, heads, rows, keys, logs in patches(m):
        logs.clamp_(min=-1e4)  # 0 · −inf would be NaN; exp(−1e4) is 0 all the same
        weights = logs.exp()
        entropy[batch, heads, rows] -= torch.linalg.vecdot(weights, logs)
        place = torch.arange(rows.start, rows.stop, device=logs.device) + first_position(m)
        back = place[:, None] - torch.arange(keys.start, keys.stop, device=logs.device)
        distance[batch, heads, rows] += torch.linalg.vecdot(weights, back.to(weights))
        total[batch, heads, rows] += weights.sum(-1)
        received[batch, heads, keys] += weights.sum(-2)
    return normalised(m, RowStatistics(entropy, distance, received), total)


def normalised(m: AttentionMap, found: RowStatistics, total: Tensor) -> RowStatistics:
    """Entropy and distance of rows that sum to `total` (B, H, T), as they are when every row sums to 1.

    A distance of 1,000 keys makes 1,000 times as much of what rounding adds to a row. A sum that is further
    from 1 than rounding explains is left as it is: the lse was wrong, which has to show.
    """
    whole = total if m.sinks is None else total + (m.sinks.to(m.lse).view(-1, 1) - anchored(m.lse)).exp_()
    whole = whole.where((whole - 1.0).abs() <= ROUNDING, 1.0)
    entropy = (found.entropy + total * whole.log()) / whole
    return found._replace(entropy=entropy, distance=found.distance / whole)


def normalise_(m: AttentionMap, weights: Tensor, rows: slice | Tensor) -> None:
    """Divide whole rows of weights (B, H, rows, S) by their own sums, as a softmax does, in place.

    Scores that were computed again differ from those behind lse in their last digits, and so does the sum of
    a row from 1. A sum that is further off is left as it is: the lse was wrong, which has to show.
    """
    whole = weights.sum(-1, keepdim=True)
    if m.sinks is not None:
        whole = whole + (m.sinks.to(m.lse).view(-1, 1, 1) - anchored(m.lse[:, :, rows, None])).exp_()
    near = (whole - 1.0).abs() <= 128 * torch.finfo(weights.dtype).eps
    weights.div_(whole.where(near, 1.0).to(weights.dtype))


def first_position(m: AttentionMap) -> int:
    """Where the map's first query stands among the keys."""
    _, _, T, S = m.matrix
    return m.mask.first_position(T, S)


def mass(m: AttentionMap, mask: Mask) -> Tensor:
    """The share of every row under a mask that is narrower than the map's own, (B, H, T)."""
    B, H, T, _ = m.matrix
    total = m.lse.new_zeros(B, H, T)
    for batch, heads, rows, _, logs in patches(m, mask):
        total[batch, heads, rows] += logs.exp_().sum(-1)
    return total


def top(m: AttentionMap, n: int) -> tuple[Tensor, Tensor]:
    """The n greatest weights of every row and their keys, each (B, H, T, n)."""
    B, H, T, _ = m.matrix
    best = m.lse.new_full((B, H, T, n), -torch.inf)
    where = torch.full((B, H, T, n), -1, device=m.device)
    for batch, heads, rows, keys, logs in patches(m):
        values, index = logs.topk(min(n, logs.shape[-1]), dim=-1)
        values = torch.cat([best[batch, heads, rows], values], -1)
        index = torch.cat([where[batch, heads, rows], index + keys.start], -1)
        values, order = values.topk(n, dim=-1)
        best[batch, heads, rows], where[batch, heads, rows] = values, index.gather(-1, order)
    weights = best.exp_()
    return weights, where.masked_fill_(weights == 0, -1)


def entries(m: AttentionMap, rows: Tensor, keys: Tensor) -> Tensor:
    """Single weights A[rows[n], keys[n]] of every head, (B, H, N): one dot product each."""
    B, H, G = *m.q.shape[:2], m.k.shape[1]
    q, k = m.q[:, :, rows].to(m.dtype), m.k[:, :, keys].to(m.dtype)
    q = q.view(B, G, H // max(G, 1), *q.shape[2:])  # (B, G, group, N, D)
    s: Tensor = (q * k.unsqueeze(2)).sum(-1).view(B, H, len(rows)) * m.scale
    if m.softcap is not None:
        s = m.softcap * torch.tanh(s / m.softcap)
    allowed, added = paired(m, rows, keys)
    if added is not None:
        s = s + added
    return (s - anchored(m.lse[:, :, rows])).exp_().masked_fill_(~allowed, 0.0)


def paired(m: AttentionMap, rows: Tensor, keys: Tensor) -> tuple[Tensor, Tensor | None]:
    """What the mask says of single entries, (B or 1, H or 1, N): in runs, since a rule answers for tiles."""
    allowed, added = [], []
    for i in range(0, len(rows), 256):
        r, c = rows[i : i + 256], keys[i : i + 256]
        tile = m.mask.tile(r, c, m.matrix, device=m.device)
        bias = m.mask.bias(r, c, m.matrix, device=m.device)
        allowed.append(tile.diagonal(dim1=-2, dim2=-1))
        if bias is not None:
            added.append(bias.detach().diagonal(dim1=-2, dim2=-1))
    if not allowed:
        return torch.ones(0, dtype=torch.bool, device=m.device), None
    return torch.cat(allowed, -1), torch.cat(added, -1) if added else None
