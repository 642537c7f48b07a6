"""What some rows of weights give: their products with values, with the sizes of values, and their sums.

On a GPU a long text is passed over a block of keys at a time. Nothing waits for the GPU, and rows that see
nothing of a block take no part in it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.backends.tiles import find_visibility
from regard.attention.masks.grid import Blocks, grid
from regard.maps import AttentionMap
from regard.maps.tile_passes.sweep import finite_lse
from regard.recorder.certificates.certificate import sampled_rows

# Of a block's weights. With a quarter of it the 40 operations on a block took longer than their numbers.
BLOCK_BYTES = 1 << 27
# Of a sum: a product of a few hundred rows with more keys at once would leave most of a GPU idle.
KEYS_OF_SUM = 1024


class RowProducts(NamedTuple):
    """What rows of weights w (B, H, rows, S) give with values v (B, G, S, E)."""

    weighted: Tensor  # Σ w v, (B, H, rows, E)
    sizes: Tensor  # Σ w |v|, (B, H, rows, E)
    sums: Tensor  # Σ w, (B, H, rows)


def multiply_rows(weights: Tensor, values: Tensor) -> RowProducts:
    """Multiply weights (B, H, rows, S) with values (B, G, S, E) of their dtype."""
    B, H, rows, S = weights.shape
    grouped = weights.reshape(B, values.shape[1], -1, S)  # (B, G, H / G · rows, S)
    products: tuple[Tensor, ...]
    if weights.device.type == "cuda" and weights.dtype == torch.float32:
        products = grouped @ values, _multiply_sizes(grouped, values)
    else:
        products = (grouped @ torch.cat([values, values.abs()], -1)).chunk(2, -1)
    weighted, sizes = (x.reshape(B, H, rows, -1) for x in products)
    return RowProducts(weighted, sizes, weights.sum(-1))


def _multiply_sizes(weights: Tensor, values: Tensor) -> Tensor:
    # What a tolerance is made of may be off by a hundredth, and half precision is 16 times as fast.
    return (weights.bfloat16() @ values.abs().bfloat16()).to(weights.dtype)


def multiply_by_blocks(m: AttentionMap, rows: Tensor, v: Tensor) -> RowProducts:
    """Return the products of some rows of a map with values v (B, G, S, E), a block of keys at a time.

    The map has no soft cap, no bias and no head with large scores: exp(score) then fits its dtype, and only
    the sums are divided by exp(lse). `rows` is a sample of `sampled_rows`.
    """
    (B, H, T, S), G = m.matrix, v.shape[1]
    q = m.q.index_select(2, rows)  # (B, H, rows, D)
    shape = B, H, len(rows)
    # Σ w v and Σ w |v|, side by side
    products = torch.zeros(*shape, 2 * v.shape[-1], dtype=m.dtype, device=m.device)
    sums = torch.zeros(shape, dtype=m.dtype, device=m.device)
    # At least two blocks: under a causal mask a quarter of their weights is then not computed.
    keys_at_once = min(BLOCK_BYTES // (B * H * len(rows) * m.dtype.itemsize), S // 2)
    step = max(keys_at_once // KEYS_OF_SUM, 1) * KEYS_OF_SUM
    edges = sorted({*range(0, S, step), S // KEYS_OF_SUM * KEYS_OF_SUM, S})
    some, every = _visibility(m, sampled_rows(T, len(rows)), edges)
    for block, (start, stop) in enumerate(pairwise(edges)):
        if (near := _span(some[:, block])) is None:
            continue
        parts = max(1, (stop - start) // KEYS_OF_SUM)
        # Each part is a product of its own.
        keys, values = (x[:, :, start:stop].reshape(B * G * parts, -1, x.shape[-1]) for x in (m.k, v))
        queries = q[:, :, near].reshape(B, G, 1, -1, q.shape[-1]).expand(-1, -1, parts, -1, -1)
        # (B · G · parts, H / G · rows, keys)
        weights = _multiply(queries.flatten(0, 2), keys.mT).mul_(m.scale)
        if (partly := _span(some[:, block] & ~every[:, block])) is not None:
            at = grid(rows[partly], slice(start, stop), m.matrix, m.device)
            hidden = (~m.mask.allowed(at)).expand(B, H, -1, stop - start)
            hidden = hidden.view(B, G, H // G, -1, parts, weights.shape[-1]).permute(0, 1, 4, 2, 3, 5)
            within = slice(partly.start - near.start, partly.stop - near.start)
            of_rows = weights.view(B, G, parts, H // G, -1, weights.shape[-1])  # a row of each head
            of_rows[..., within, :].masked_fill_(hidden, -torch.inf)
        row_sums = weights.exp_().sum(-1)
        half = weights.bfloat16()
        if values.dtype == torch.bfloat16:
            # Two numbers in half precision hold a weight to 2⁻¹⁷, and are multiplied 16 times as fast.
            product = _multiply(half, torch.cat([values, values.abs()], -1))
            product[..., : v.shape[-1]] += _multiply(weights.sub_(half).bfloat16(), values)
        else:
            sizes = _multiply(half, values.abs().bfloat16())
            product = torch.cat([weights @ values.to(m.dtype), sizes], -1)
        for total, of_parts in ((products, product), (sums, row_sums)):
            summed = of_parts.view(B, G, parts, *of_parts.shape[1:]).sum(2)  # (B, G, H / G · rows, …)
            total[:, :, near] += summed.view(B, H, -1, *total.shape[3:])
    factor = finite_lse(m.lse.index_select(2, rows)).neg_().exp_()
    weighted, sizes = products.mul_(factor[..., None]).chunk(2, -1)
    return RowProducts(weighted, sizes, sums.mul_(factor))


def _multiply(x: Tensor, y: Tensor) -> Tensor:
    """Multiply matrices (N, ·, ·) of half precision, or float32, with a result in float32."""
    # Since PyTorch 2.8 a GPU keeps the sums as it has computed them.
    if x.is_cuda and x.dtype != torch.float32 and hasattr(torch.ops.aten.bmm, "dtype"):
        return torch.bmm(x, y, out_dtype=torch.float32)
    return x.float() @ y.float()


def _visibility(m: AttentionMap, rows: Tensor, edges: list[int]) -> tuple[Tensor, Tensor]:
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
