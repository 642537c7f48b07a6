"""Tiles of the T×S matrix: which of them to visit, and the masked scores of one.

A tile in which nothing is visible is never visited, and one in which everything is needs no masking. This
file knows scores; softmax and everything after it belong to its callers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.backends.problem import AttentionProblem
from regard.attention.inputs import working_dtype
from regard.attention.masks.base import Mask
from regard.attention.masks.grid import Blocks, blocks_between, grid

ROWS, COLS = 256, 512  # the size of one tile
TILE_NUMBERS = 1 << 19  # scores that are computed together: 2 MiB in float32, which fits the CPU's cache
GPU_SIDE = 8  # on a GPU, tiles are this many times as long on each side, to keep it busy


class TilePart(NamedTuple):
    """Some sequences and heads of a problem, few enough that one tile of all of them fits the cache."""

    batch: slice
    heads: slice
    groups: slice
    problem: AttentionProblem


class VisitedKeys(NamedTuple):
    """A block of keys that a block of queries visits; `whole` if every key is visible to every query."""

    keys: slice
    whole: bool


def parts(problem: AttentionProblem, dtype: torch.dtype | None = None) -> Iterator[TilePart]:
    """The problem cut into a few heads at a time, in the dtype in which scores are computed."""
    B, _, T, S = problem.matrix
    G, group = problem.k.shape[1], problem.group
    dtype = dtype or working_dtype(problem.q.dtype)
    side = GPU_SIDE if problem.q.is_cuda else 1
    tile = max(1, min(T, ROWS * side)) * max(1, min(S, COLS * side))
    max_heads = max(1, TILE_NUMBERS * side**2 // (group * tile))
    sequences, kv_heads = max(1, max_heads // max(G, 1)), min(G, max_heads)
    for b in range(0, B, sequences):
        for g in range(0, G, max(kv_heads, 1)):
            batch, groups = slice(b, min(b + sequences, B)), slice(g, min(g + kv_heads, G))
            heads = slice(groups.start * group, groups.stop * group)
            q = problem.q[batch, heads].to(dtype)
            # Keys are stored transposed, as the product needs them, which is a quarter faster on a CPU.
            k = problem.k[batch, groups].to(dtype).mT.contiguous().mT
            v = problem.v[batch, groups].to(dtype).contiguous()
            sinks = None if problem.sinks is None else problem.sinks[heads].to(dtype)
            mask = problem.mask.select(batch, heads)
            yield TilePart(batch, heads, groups, problem._replace(q=q, k=k, v=v, mask=mask, sinks=sinks))


def visits(part: AttentionProblem) -> Iterator[tuple[slice, list[VisitedKeys]]]:
    """For each block of queries, the blocks of keys in which it sees anything."""
    _, _, T, S = part.matrix
    side = GPU_SIDE if part.q.is_cuda else 1
    return visits_between(part.mask, [*range(0, T, ROWS * side), T], [*range(0, S, COLS * side), S])


def visits_between(
    mask: Mask, q_edges: list[int], k_edges: list[int]
) -> Iterator[tuple[slice, list[VisitedKeys]]]:
    """`visits` for blocks cut at these edges, which start at 0 and end at T and S."""
    queries = [slice(a, b) for a, b in pairwise(q_edges)]
    keys = [slice(a, b) for a, b in pairwise(k_edges)]
    some, every = find_visibility(mask, blocks_between(q_edges, k_edges))
    for rows, any_, all_ in zip(queries, some.tolist(), every.tolist(), strict=True):
        yield (
            rows,
            [
                VisitedKeys(key, whole)
                for key, visible, whole in zip(keys, any_, all_, strict=True)
                if visible
            ],
        )


def find_visibility(mask: Mask, blocks: Blocks) -> tuple[Tensor, Tensor]:
    """For each block, (R, C): whether any head may see anything of it, and whether all see all."""
    some, every = mask.block_bounds(blocks)
    shape = (len(blocks.q_first), blocks.k_first.shape[1])
    some = some.expand(*some.shape[:-2], *shape).reshape(-1, *shape).any(0)
    every = every.expand(*every.shape[:-2], *shape).reshape(-1, *shape).all(0)
    return some, every


def fold(x: Tensor, G: int) -> Tensor:
    """(b, H, R, D) as (b·G, group·R, D): the queries that share a key head in one matrix."""
    b, H, R, D = x.shape
    return x.reshape(b * G, (H // max(G, 1)) * R, D)


def scale_queries(part: AttentionProblem, rows: slice) -> Tensor:
    """The queries of some rows times the scale, (b, H, R, D), which is cheaper than to scale the products.

    Below a soft cap the products are scaled, which costs nothing there and rounds a score only once.
    """
    q = part.q[:, :, rows]
    return q * part.scale if part.softcap is None else q


class Tile(NamedTuple):
    """The masked scores of a tile, and the tensors that they were computed from."""

    scores: Tensor  # (N, M, C) with N = b·G and M = group·R
    tanh: Tensor | None  # tanh(score / softcap), for the backward pass
    q: Tensor  # (N, M, D)
    k: Tensor  # (N, C, D)
    v: Tensor  # (N, C, E)


def score(
    part: AttentionProblem, q: Tensor, rows: slice, column: VisitedKeys, *, keep_tanh: bool = False
) -> Tile:
    """The masked scores of a tile. q is folded, (N, M, D), and scaled by `scale_queries`.

    `keep_tanh` also returns what the gradient of the soft cap is computed from.
    """
    b, H = part.q.shape[:2]
    keys = column.keys
    k, v = (x[:, :, keys].flatten(0, 1) for x in (part.k, part.v))  # (N, C, ·)
    allowed = None
    if not column.whole or part.mask.biased:
        R, C = rows.stop - rows.start, keys.stop - keys.start
        at = grid(rows, keys, part.matrix, q.device)
        if not column.whole:
            allowed = part.mask.allowed(at)
            allowed = allowed.expand(*allowed.shape[:-2], R, C)
            q, k, v = without_idle(allowed, b, H, q, k, v)
    s = torch.bmm(q, k.mT)  # (N, M, C)
    tanh = None
    if part.softcap is not None:
        s.mul_(part.scale / part.softcap).tanh_()
        tanh = s.clone() if keep_tanh else None
        s.mul_(part.softcap)
    matrix = s.view(b, H, rows.stop - rows.start, keys.stop - keys.start)
    if part.mask.biased and (bias := part.mask.score_bias(at)) is not None:
        # A trainable bias never comes here: `choice.unsupported_reason` hands it to the steps.
        matrix.add_(bias.detach())
    if allowed is not None:
        matrix.masked_fill_(~allowed, -torch.inf)
    return Tile(s, tanh, q, k, v)


def without_idle(
    allowed: Tensor, b: int, H: int, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v with zeros for queries that see no key of the tile and for keys that no query of it sees.

    Their weights are 0, but 0 · NaN is NaN.
    """
    # Expanded afterwards: most masks are the same for all heads.
    looks, seen = allowed.any(-1), allowed.any(-2)
    looks = looks.expand(b, H, -1).reshape(len(q), -1, 1)  # (N, M, 1)
    seen = seen.expand(b, H, -1).reshape(len(k), -1, k.shape[1]).any(1).unsqueeze(-1)  # (N, C, 1)
    return q.where(looks, 0.0), k.where(seen, 0.0), v.where(seen, 0.0)


def least_log(dtype: torch.dtype) -> float:
    """The logarithm of about the smallest normal number: −87 in float32."""
    return float(math.ceil(math.log(torch.finfo(dtype).tiny)))


def exponentials(logs: Tensor, out: Tensor) -> Tensor:
    """exp(logs), written to `out`, which may be `logs`; 0 where it is below twice the smallest normal number.

    A CPU takes up to 300 times as long for an exponential that is not normal, and a tile that a mask hides
    half of has many.
    """
    in_place = out is logs  # and then not by `out=`, which forward-mode differentiation does not know
    least = least_log(logs.dtype)
    # Reading the minimum back would make the host wait for a GPU.
    # amin refuses a tensor without numbers.
    if not (logs.is_cpu and logs.numel()) or torch.compiler.is_compiling() or bool(logs.amin() >= least):
        return logs.exp_() if in_place else torch.exp(logs, out=out)
    floored = logs.clamp_(min=least) if in_place else torch.clamp(logs, min=least, out=out)
    # This is far quicker than to fill under a mask.
    # 1.001: exp(least) itself is rounded, and what was clamped to it must fall below the threshold.
    return torch.threshold_(floored.exp_(), 1.001 * math.exp(least), 0.0)
