"""Launches the Triton kernels that reduce the rows of a map: their sums, statistics and largest weights.

Each takes every block of queries past the key blocks it sees, so that `launch_on_rows` serves them all, but
for the weights along one diagonal.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.attention.backends.triton import configs
from regard.attention.backends.triton.launch import KernelMap, descriptor, padded, visible_blocks
from regard.attention.masks.grid import Band

MOST = 64
"""The largest k of `topk`: the kernel keeps k scores and keys of each row in registers."""
DIAGONAL_ROWS = 32  # queries of one program


def row_sums(m: KernelMap, gain: Tensor | None = None) -> Tensor:
    """The weights of a map, summed over the keys: (B, H, T), in float32, with the same bits every time.

    Only the keys that its mask shows are summed, which may be fewer than its `lse` counts. `gain` (B, H, S),
    if given, multiplies the weights of each key: Au.
    """
    from regard.attention.backends.triton.row_sums_kernel import row_sums_kernel

    sums = torch.empty(*m.q.shape[:3], dtype=torch.float32, device=m.q.device)
    gain = None if gain is None else gain.float().contiguous()
    launch_on_rows(row_sums_kernel, "row sums", m, (gain, None, None, sums))
    return sums


def pair_sums(m: KernelMap, ids: Tensor, key_ids: Tensor) -> Tensor:
    """The weights on earlier keys whose number is the query's, (2, B, H, T), by two tables in one pass.

    `ids` (B, S) are whole numbers of the positions as queries, the last T of them, and `key_ids` (2, B, S)
    two tables of the positions as keys.
    """
    from regard.attention.backends.triton.row_sums_kernel import row_sums_kernel

    sums = torch.empty(2, *m.q.shape[:3], dtype=torch.float32, device=m.q.device)
    B, S = len(m.q), m.k.shape[2]
    own, of_keys = ids.expand(B, S).contiguous(), key_ids.expand(2, B, S).contiguous()
    launch_on_rows(row_sums_kernel, "row sums", m, (None, own, of_keys, sums))
    return sums


class CellArguments(NamedTuple):
    """The statistics kernel's arguments for cells that it fills in the same pass; see there."""

    mass: Tensor | None = None  # (B, H, parts of bins of queries, of keys)
    peak: Tensor | None = None
    share: float = 0.0  # 1 / the number of queries in a bin
    row_bins: int = 1
    col_bins: int = 1
    parts: int = 1


NO_CELLS = CellArguments()


def statistics(
    m: KernelMap, first_position: int, cells: CellArguments = NO_CELLS
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Statistics of the weights of a map, in float32; fills the `cells`, if there are some.

    Returns the entropy (B, H, T) in nats, the mean distance (B, H, T) from query i at position i +
    first_position back to its keys, the attention received by each key (B, H, S), to 2⁻⁴⁰, and the largest
    score (B, H, T). A NaN in one row makes the received attention of its head NaN.
    """
    from regard.attention.backends.triton.statistics_kernel import UNITS

    received = torch.zeros(*m.q.shape[:2], m.k.shape[2], dtype=torch.int64, device=m.q.device)
    largest = torch.empty_like(m.lse, memory_format=torch.contiguous_format)
    entropy, distance = _entropy_and_distance("statistics", m, first_position, received, largest, cells)
    # float64, since an integer of 2⁴⁰ units has more digits than float32.
    total = received.to(torch.float64).div_(UNITS.value).float()
    # Integers have no NaN: it would be lost in the sum.
    total.masked_fill_(entropy.isnan().any(-1, keepdim=True), torch.nan)
    return entropy, distance, total, largest.add_(m.lse)  # they were largest logarithms of weights


def row_statistics(m: KernelMap, first_position: int) -> tuple[Tensor, Tensor]:
    """Entropy and distance as `statistics` returns them, in less time than with the attention received."""
    return _entropy_and_distance("row statistics", m, first_position, None, None)


def _entropy_and_distance(
    purpose: str,
    m: KernelMap,
    first_position: int,
    received: Tensor | None,
    largest: Tensor | None,
    cells: CellArguments = NO_CELLS,
) -> tuple[Tensor, Tensor]:
    """Entropy and distance.

    Unless they are None, what keys receive is added to `received`, in integers, and the logarithm of the
    largest weight of every row is written to `largest`.
    """
    from regard.attention.backends.triton.statistics_kernel import statistics_kernel

    entropy, distance = torch.empty(2, *m.q.shape[:3], dtype=torch.float32, device=m.q.device)
    sizes = (0, 0) if cells.mass is None else cells.mass.shape[2:]
    launch_on_rows(
        statistics_kernel, purpose, m, (entropy, distance, received, largest, *cells[:3]),
        (first_position, *sizes, *cells[3:]),
    )  # fmt: skip
    return entropy, distance


def topk(m: KernelMap, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest weights of every row of a map, and their keys: (B, H, T, count) each.

    The weights are in float32, largest first, and of equal ones that of the first key first. A key is −1
    where the weight is 0.
    """
    from regard.attention.backends.triton.topk_kernel import topk_kernel

    shape = (*m.q.shape[:3], count)
    weights = torch.empty(shape, dtype=torch.float32, device=m.q.device)
    indices = torch.empty(shape, dtype=torch.int64, device=m.q.device)
    padded_count = max(8, 1 << (count - 1).bit_length())
    launch_on_rows(topk_kernel, "topk", m, (weights, indices), (count, padded_count))
    return weights, indices


def diagonal(q: Tensor, k: Tensor, lse: Tensor, scale: float, softcap: float | None) -> Tensor:
    """The weights exp(score − lse) of q (B, H, N, D) on the keys k (B, G, N, D) of the same numbers.

    `lse` (B, H, N) is in float32 or float64, and so is the difference; the result is in float32. A mask that
    hides keys, or adds to the scores, is left to the caller.
    """
    from regard.attention.backends.triton.diagonal_kernel import diagonal_kernel

    B, H, N, D = q.shape
    weights = torch.empty(B, H, N, dtype=torch.float32, device=q.device)
    # Triton launches on the current device.
    with torch.cuda.device_of(q):  # type: ignore[no-untyped-call]
        diagonal_kernel[(-(-N // DIAGONAL_ROWS) * B * H,)](
            q, k, lse, weights, q.stride(), k.stride(), lse.stride(), H, H // k.shape[1], N, scale, softcap,
            D, *padded(D), DIAGONAL_ROWS,
        )  # fmt: skip
    return weights


def launch_on_rows(
    kernel: Any,
    purpose: str,
    m: KernelMap,
    own: tuple[Tensor | float | None, ...],
    more: tuple[int, ...] = (),
    constants: tuple[int, ...] = (),
) -> None:
    """Launch a kernel on every block of queries; `own`, `more` and `constants` are arguments of its own."""
    B, H, T, S = m.matrix
    scores, q = m.scores(), m.signed_q()
    (width,) = padded(q.shape[-1])
    config = configs.choose(purpose, width, q.dtype)
    lists = None
    if scores.band is None:
        lists = visible_blocks(scores.mask, m.matrix, config.rows, config.cols, q.device).by_row
    # Triton launches on the current device.
    with torch.cuda.device_of(q):  # type: ignore[no-untyped-call]
        kernel[(-(-T // config.rows) * B * H,)](
            q, m.k, descriptor(m.k, config.tma, config.cols, width), m.lse.contiguous(), *own,
            scores.slopes, lists, scores.band or Band(),
            q.stride(), m.k.stride(), H, m.group, T, S, scores.factor, scores.cap, *more,
            q.shape[-1], width, config.rows, config.cols, *constants, configs.PRECISION,
            num_warps=config.warps, num_stages=config.stages,
        )  # fmt: skip
