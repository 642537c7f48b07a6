"""The weights of queries on chosen keys: a few for each head, or one for each query.

Keys are gathered and multiplied, all heads at once, and nothing is read back from a GPU. This file knows
maps; it does not know what the keys were chosen for.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from regard.attention.masks.base import grid
from regard.maps import AttentionMap
from regard.maps.data import MapData
from regard.maps.tile_passes import precision
from regard.maps.tile_passes.sweep import finite_lse

FEW_KEYS = 8  # keys are gathered if they are at most one in so many
MAX_ENTRIES = 1 << 24  # entries for which a mask that is no band is evaluated at a time


def columns(m: AttentionMap, keys: Tensor) -> Tensor:
    """The weights of all queries on one key for each text and head, keys (B, H or 1): (B, H, T).

    A key of −1 stands for none, and its weights are 0.
    """
    return several_columns(m, keys.unsqueeze(-1))[..., 0]


def several_columns(m: AttentionMap, keys: Tensor) -> Tensor:
    """The same of n keys for each text and head, keys (B, H or 1, n): (B, H, T, n)."""
    keys = _for_heads(m, keys)
    (weights,) = precision.compute(
        _with_heads(m, keys.shape[1]),
        lambda group: [_column_weights(group.data, keys[group.batch, group.heads].unsqueeze(2))],
    )
    return weights


def weights_on(m: AttentionMap, keys: Tensor) -> Tensor:
    """The weight of every query on a key of its own, keys (B, H or 1, T): (B, H, T); −1 stands for none."""
    keys = _for_heads(m, keys)
    (weights,) = precision.compute(
        _with_heads(m, keys.shape[1]),
        lambda group: [_entry_weights(group.data, keys[group.batch, group.heads].unsqueeze(-1))],
    )
    return weights[..., 0]


def mass_on(m: AttentionMap, is_key: Tensor) -> Tensor:
    """The mass of every query on the keys for which `is_key` (B, H, S) is true: (B, H, T)."""
    S = m.matrix[3]
    # On a GPU a pass over all keys takes less time than waiting for their number.
    most = int(is_key.sum(-1).max()) if m.device.type == "cpu" and is_key.numel() else S
    if FEW_KEYS * most > S:
        sums: Tensor = m.weighted(is_key.to(m.lse)).row_sums()
        return sums
    keys = torch.where(is_key, torch.arange(S, device=m.device), -1).topk(most).values
    return several_columns(m, keys).sum(-1)


def sees(m: MapData, keys: Tensor) -> Tensor:
    """Whether queries see keys (B, H, T or 1, n): boolean (B, H, T, n); nobody sees −1."""
    _, _, T, S = m.matrix
    inside = (keys >= 0) & (keys < S)
    band = m.mask.band(T, S)
    if band is None:
        visible = _ask_mask(m, keys, m.mask.allowed)
        assert visible is not None
        return visible & inside
    back = torch.arange(S - T, S, device=m.device).view(T, 1) - keys
    visible = inside.expand(back.shape)
    if band.behind is not None:
        visible = visible & (back <= band.behind)
    return visible if band.ahead is None else visible & (back >= -band.ahead)


def sees_any(m: AttentionMap, is_key: Tensor) -> Tensor:
    """Whether every query sees some of the keys for which `is_key` (B, H, S) is true: (B, H, T)."""
    _, _, T, S = m.matrix
    band = m.mask.band(T, S)
    if band is None:
        counts = []
        for rows in _row_chunks(m):
            allowed = m.mask.allowed(grid(rows, slice(0, S), m.matrix, m.device)).float()  # (b, h, rows, S)
            if allowed.shape[1] == 1:  # one mask for all heads: a product instead of B · H of them
                counts.append(is_key.float() @ allowed[:, 0].mT)
            else:
                counts.append(
                    torch.einsum("bhrs,bhs->bhr", allowed.expand(*is_key.shape[:2], -1, S), is_key.float())
                )
        return torch.cat(counts, -1) > 0
    # The number of such keys before each position, and of those in the band of each query.
    before = torch.nn.functional.pad(is_key.long().cumsum(-1), (1, 0))  # (B, H, S + 1)
    positions = torch.arange(S - T, S, device=m.device)
    first = 0 * positions if band.behind is None else (positions - band.behind).clamp(0, S)
    stop = 0 * positions + S if band.ahead is None else (positions + band.ahead + 1).clamp(0, S)
    return before[..., stop] > before[..., first]


def _for_heads(m: AttentionMap, keys: Tensor) -> Tensor:
    """Keys (B, h, …) for every head of a map."""
    return keys.expand(-1, max(keys.shape[1], m.matrix[1]), *keys.shape[2:])


def _with_heads(m: AttentionMap, heads: int) -> AttentionMap:
    """The map with its one head repeated, if there are more heads."""
    if m.matrix[1] == heads:
        return m
    fields = {name: getattr(m, name) for name in m.TOKEN_FIELDS}
    return m._with(**{name: x.expand(-1, heads, *x.shape[2:]) for name, x in fields.items()})


def _column_weights(m: MapData, keys: Tensor) -> Tensor:
    """(B, H, T, n) for keys (B, H, 1, n)."""
    q = m.q.to(_product_dtype(m))
    products = q @ _gather_keys(m, keys).squeeze(2).to(q).mT
    return _weights(m, products, keys)


def _entry_weights(m: MapData, keys: Tensor) -> Tensor:
    """(B, H, T, 1) for keys (B, H, T, 1)."""
    q = m.q.to(_product_dtype(m))
    products = torch.linalg.vecdot(q, _gather_keys(m, keys).squeeze(3).to(q)).unsqueeze(-1)
    return _weights(m, products, keys)


def _product_dtype(m: MapData) -> torch.dtype:
    """The dtype of few products, which may add up in another order than those behind lse."""
    return torch.float64 if m.device.type == "cpu" else m.dtype  # float64 is slow on GPUs, or missing


def _gather_keys(m: MapData, keys: Tensor) -> Tensor:
    """The vectors of keys (B, H, t, n): (B, H, t, n, D)."""
    B, G, S, D = m.k.shape
    index = keys.clamp(0, S - 1).reshape(B, G, -1, 1).expand(-1, -1, -1, D)
    return m.k.gather(2, index).view(*keys.shape, D)


def _weights(m: MapData, products: Tensor, keys: Tensor) -> Tensor:
    """The weights (B, H, T, n) from the products of queries and chosen keys."""
    scores = products * m.scale
    if m.softcap is not None:
        scores = m.softcap * torch.tanh(scores / m.softcap)
    if m.mask.biased and (bias := _ask_mask(m, keys, m.mask.score_bias)) is not None:
        scores = scores + bias
    weights = (scores - finite_lse(m.lse).unsqueeze(-1)).to(m.result_dtype).exp_()
    return weights.masked_fill_(~sees(m, keys), 0.0)


def _ask_mask(m: MapData, keys: Tensor, ask: Callable[..., Tensor | None]) -> Tensor | None:
    """The answers of a mask for keys (B, H, T or 1, n), some rows at a time: (B, H, T, n)."""
    (B, H), (T, S) = keys.shape[:2], m.matrix[2:]
    parts = []
    for rows in _row_chunks(m):
        answer = ask(grid(rows, slice(0, S), m.matrix, m.device))
        if answer is None:
            return None
        own = keys.expand(-1, -1, T, -1)[:, :, rows]
        parts.append(answer.expand(B, H, own.shape[2], S).gather(-1, own.clamp(0, S - 1)))
    return torch.cat(parts, 2)


def _row_chunks(m: MapData) -> list[slice]:
    """The rows of a map, so many at a time that all entries of a mask fit in memory."""
    B, H, T, S = m.matrix
    step = max(1, MAX_ENTRIES // max(1, B * H * S))
    return [slice(first, min(first + step, T)) for first in range(0, max(T, 1), step)]  # max: one of no rows
