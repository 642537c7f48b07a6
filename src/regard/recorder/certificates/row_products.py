"""What some rows of weights give: their products with values, with the sizes of values, and their sums.

A block of keys is passed over at a time, so that a long text needs no whole rows, and rows that see nothing
of a block take no part in it. On a GPU nothing waits for a number.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.backends.tiles import find_visibility
from regard.attention.masks.base import full
from regard.attention.masks.grid import Blocks, grid
from regard.attention.masks.memo import memoize_on_mask
from regard.maps import AttentionMap
from regard.maps.data import MapData
from regard.maps.index import select_kv_heads
from regard.maps.tile_passes import precision
from regard.maps.tile_passes.dense_rows import partial_weights
from regard.maps.tile_passes.sweep import finite_lse
from regard.recorder.certificates.certificate import sampled_rows

# Of a block's weights. With a quarter of it the operations on a block took a GPU longer than their numbers.
BLOCK_BYTES = {"cpu": 1 << 26, "cuda": 1 << 27}
# Of a sum: a product of a few hundred rows with more keys at once would leave most of a GPU idle.
KEYS_OF_SUM = 1024


Sample = tuple[int, int]
"""The number of rows that are compared, and from which of them on some are meant."""


class RowProducts(NamedTuple):
    """What rows of weights w (B, H, rows, S) give with values v (B, G, S, E)."""

    weighted: Tensor  # Σ w v, (B, H, rows, E)
    sizes: Tensor  # Σ w |v|, (B, H, rows, E)
    sums: Tensor  # Σ w, (B, H, rows)


def multiply_rows(m: AttentionMap, rows: Tensor, v: Tensor, *, quick: bool = False) -> RowProducts:
    """Return the products of some rows of weights with values v (B, G, S, E).

    `rows` is a sample of `sampled_rows`. `quick` expects ordinary numbers: a hidden key with a value of NaN
    or a score above 88 makes a product NaN.
    """
    B, H, T, _ = m.matrix
    at = sampled_rows(T, len(rows))  # on the CPU: reading those of a GPU would wait for it
    most = max(1, 4 * BLOCK_BYTES[_kind(m)] // (B * H * KEYS_OF_SUM * m.dtype.itemsize))
    parts: list[list[Tensor]] = []
    for start in range(0, len(rows), most):
        part = slice(start, start + most)

        def multiply_heads(group: precision.HeadGroup, part: slice = part) -> list[Tensor]:
            values = select_kv_heads(v[group.batch], group.heads, H)
            own, sample = (rows[part], at[part]), (len(rows), part.start)
            return _multiply_blocks(group.data, *own, sample, values, quick=quick and _is_plain(group.data))

        parts.append(precision.compute(m, multiply_heads, rows[part]))
    return RowProducts(*(x[0] if len(x) == 1 else torch.cat(x, 2) for x in zip(*parts, strict=True)))


def visible_keys(m: MapData, rows: Tensor, sample: Sample) -> Tensor:
    """Which keys some rows see, (B or 1, H or 1, rows, S); `sample` says which rows these are."""
    _, _, T, S = m.matrix

    def compute() -> Tensor:
        visible = m.mask.allowed(grid(rows, slice(0, S), m.matrix, m.device))
        return visible.expand(-1, -1, len(rows), S)

    # A dozen operations, in every capture of short texts. Masks that hold tensors are new in every forward.
    if not m.mask.positional:
        return compute()
    return memoize_on_mask(m.mask, ("visible keys", T, S, sample, len(rows), m.device), compute)


def _kind(m: MapData) -> str:
    return "cuda" if m.device.type == "cuda" else "cpu"


def _is_plain(m: MapData) -> bool:
    """Whether exp(score) fits float32 and nothing stands between the product and the exponential."""
    in_float32 = m.dtype == torch.float32 and m.q.dtype == m.k.dtype
    return in_float32 and m.softcap is None and not m.mask.biased


def _multiply_blocks(
    m: MapData, rows: Tensor, at: Tensor, sample: Sample, v: Tensor, *, quick: bool
) -> list[Tensor]:
    """The products of heads that are computed in one dtype; `at` are the `rows` on the CPU."""
    (B, H, T, S), edges = m.matrix, _cut_keys(m, len(rows))

    def multiply(own: Tensor, keys: slice, shown: tuple[slice, Tensor] | None) -> tuple[Tensor, Tensor]:
        if quick:
            return _multiply_exponentials(m, own, keys, v[:, :, keys], shown)
        return _multiply_weights(partial_weights(m, grid(own, keys, m.matrix, m.device)), v[:, :, keys])

    shown: tuple[slice, Tensor] | None = None
    if len(edges) == 2:
        if quick and m.mask is not full:
            shown = slice(0, len(rows)), visible_keys(m, rows, sample)
        products, sums = multiply(rows, slice(0, S), shown)
    else:
        some, every = _visibility(m, at, edges)
        products = torch.zeros(B, H, len(rows), 2 * v.shape[-1], dtype=m.dtype, device=m.device)
        sums = products.new_zeros(B, H, len(rows))
        for block, (start, stop) in enumerate(pairwise(edges)):
            if (near := _span(some[:, block])) is None:
                continue
            own, keys, shown = rows if near == slice(0, len(rows)) else rows[near], slice(start, stop), None
            if quick and (partly := _span((some & ~every)[near, block])) is not None:
                shown = partly, m.mask.allowed(grid(own[partly], keys, m.matrix, m.device))
            part, part_sums = multiply(own, keys, shown)
            products[:, :, near] += part
            sums[:, :, near] += part_sums
    if quick:
        factor = finite_lse(m.lse if len(rows) == T else m.lse.index_select(2, rows)).neg_().exp_()
        products.mul_(factor[..., None])
        sums.mul_(factor)
    return [*products.chunk(2, -1), sums]


def _multiply_weights(weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return what weights (B, H, rows, S) give with values, Σ w v beside Σ w |v|, and their sums."""
    (B, H, rows, S), G = weights.shape, values.shape[1]
    grouped = weights.reshape(B, G, -1, S)  # (B, G, H / G · rows, S)
    # 0 · NaN is NaN: values without any weight are left out.
    values = values.masked_fill(grouped.amax(-2).unsqueeze(-1) == 0, 0.0).to(weights.dtype)
    product = grouped @ torch.cat([values, values.abs()], -1)
    return product.view(B, H, rows, -1), weights.sum(-1)


def _multiply_exponentials(
    m: MapData, rows: Tensor, keys: slice, values: Tensor, shown: tuple[slice, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Return what exp(score) gives with the values of some keys, and its sums.

    `shown` are the rows that do not see all of these keys, and which they see; None if there are none. The
    weights are exp(score) / exp(lse), and to divide the sums is cheaper than to divide the weights.
    """
    (B, H, T, _), G, S = m.matrix, m.k.shape[1], keys.stop - keys.start
    parts = max(1, S // KEYS_OF_SUM)  # each is a product of its own
    q = (m.q if len(rows) == T else m.q.index_select(2, rows)).reshape(B * G, -1, m.q.shape[-1])
    q = q if parts == 1 else q.repeat_interleave(parts, 0)
    k, v = (x.reshape(B * G * parts, -1, x.shape[-1]) for x in (m.k[:, :, keys], values))
    weights = _product(q, k.mT, m.scale).exp_()  # (B · G · parts, H / G · rows, keys)
    if shown is not None:
        partly, visible = shown[0], shown[1].to(weights.dtype)
        # Hidden afterwards: a CPU takes fifteen times as long for the exponential of −inf, and five times as
        # long to fill under a mask that heads share as to multiply.
        if parts == 1:
            weights.view(B, H, len(rows), S)[:, :, partly].mul_(visible)
        else:
            visible = visible.expand(B, H, -1, S).view(B, G, H // G, -1, parts, S // parts)
            of_rows = weights.view(B, G, parts, H // G, len(rows), -1)[..., partly, :]
            of_rows.mul_(visible.permute(0, 1, 4, 2, 3, 5))
    both = torch.cat([v, v.abs()], -1)
    if v.dtype == m.q.dtype == torch.bfloat16:
        # The rounding of a weight to half precision is an eighth of the tolerance, if all of it adds up.
        product = _product(weights.bfloat16(), both)
    elif m.device.type != "cuda":
        product = weights @ both.float()
    else:
        # What a tolerance is made of may be off by a hundredth, and half precision is 16 times as fast.
        sizes = _product(weights.bfloat16(), v.abs().bfloat16())
        product = torch.cat([weights @ v.float(), sizes], -1)
    sums = weights.sum(-1)
    if parts > 1:
        product, sums = (x.view(B, G, parts, *x.shape[1:]).sum(2) for x in (product, sums))
    return product.view(B, H, len(rows), -1), sums.view(B, H, len(rows))


def _product(x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
    """Multiply matrices (N, ·, ·) of half precision, or float32, with a result in float32."""
    # Since PyTorch 2.8 a GPU keeps the sums as it has computed them.
    if x.is_cuda and x.dtype != torch.float32 and hasattr(torch.ops.aten.bmm, "dtype"):
        product = torch.bmm(x, y, out_dtype=torch.float32)
        return product if scale == 1.0 else product.mul_(scale)
    return (x if scale == 1.0 else x.float() * scale).float() @ y.float()


def _cut_keys(m: MapData, rows: int) -> list[int]:
    """Return where the keys are cut into blocks, from 0 to their number."""
    B, H, _, S = m.matrix
    if S < 2 * KEYS_OF_SUM:
        return [0, S]
    # At least two blocks: under a causal mask a quarter of their weights is then not computed.
    at_once = min(BLOCK_BYTES[_kind(m)] // (B * H * rows * m.dtype.itemsize), S // 2)
    step = max(at_once // KEYS_OF_SUM, 1) * KEYS_OF_SUM
    return sorted({*range(0, S, step), S // KEYS_OF_SUM * KEYS_OF_SUM, S})


def _visibility(m: MapData, rows: Tensor, edges: list[int]) -> tuple[Tensor, Tensor]:
    """Return whether each row may see some, and sees all, of each block of keys: (rows, blocks) each."""
    _, _, T, S = m.matrix
    # Reading a mask's own tensors would make the host wait for a GPU.
    if not all(mask.positional for mask in m.mask.conjuncts()):
        some = torch.ones(len(rows), len(edges) - 1, dtype=torch.bool, device="cpu")
        return some, ~some
    at = (rows + m.first_position).view(-1, 1)
    first, end = (torch.tensor([x], device="cpu") for x in (edges[:-1], edges[1:]))
    return find_visibility(m.mask, Blocks(at, at, first, end - 1, T, S))


def _span(rows: Tensor) -> slice | None:
    """Return the run of rows from the first to the last that is marked; None if none is."""
    at = rows.nonzero().flatten().tolist()
    return slice(at[0], at[-1] + 1) if at else None
