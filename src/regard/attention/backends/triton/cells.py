"""The buffers through which the forward kernel hands out pooled weights, and how they become cells.

A program of the kernel writes the log-sum and the largest score of each of its queries in every cell to its
own part of a scratch buffer, and reduces them at the end. So that the scratch stays small, a few heads run at
a time and use it in turn.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.backends.triton.configs import KernelConfig

MAX_SCRATCH = 1 << 29  # bytes


class SquareCells(NamedTuple):
    """Weights pooled into cells of `size` queries and `size` keys, of which the last ones may hold fewer."""

    size: int
    mass: Tensor  # (B, H, rows, cols): summed over the keys of a cell, averaged over its queries
    max: Tensor  # (B, H, rows, cols)


class CellBuffers(NamedTuple):
    """The kernel's arguments for cells."""

    log_sums: Tensor  # (programs, cells, queries of a block), in base 2; scratch
    tops: Tensor  # the same of the largest scores; scratch
    sums: Tensor  # (B, H, blocks of queries, cells): the weights summed over keys and queries
    peaks: Tensor  # (B, H, blocks of queries, cells): the largest weight
    width: int  # the number of cells of a row

    @staticmethod
    def empty(
        matrix: tuple[int, int, int, int], size: int, config: KernelConfig, device: torch.device
    ) -> CellBuffers:
        """The buffers for cells of `size` keys, a multiple of the kernel's blocks."""
        B, H, T, S = matrix
        blocks, width = -(-T // config.rows), -(-S // size)
        programs = blocks * heads_at_once(matrix, size, config)
        log_sums, tops = torch.empty(2, programs, width, config.rows, dtype=torch.float32, device=device)
        sums, peaks = torch.zeros(2, B, H, blocks, width, dtype=torch.float32, device=device)
        return CellBuffers(log_sums, tops, sums, peaks, width)

    def join(self, T: int, size: int, rows: int) -> SquareCells:
        """Join blocks of `rows` queries, of T in all, to cells of `size`."""
        sums, peaks, parts = self.sums, self.peaks, size // rows
        if parts > 1:
            shape = (*sums.shape[:2], -1, parts, self.width)
            sums, peaks = (pad(x, (0, 0, 0, -x.shape[2] % parts)).view(shape) for x in (sums, peaks))
            sums, peaks = sums.sum(3), peaks.amax(3)
        mass = sums / size
        # The last cell holds fewer queries, and its mean is over those.
        if T % size:
            mass[:, :, -1] *= size / (T % size)
        return SquareCells(size, mass, peaks)


def heads_at_once(matrix: tuple[int, int, int, int], size: int, config: KernelConfig) -> int:
    """How many heads share a launch, so that their scratch stays below `MAX_SCRATCH`."""
    B, H, T, S = matrix
    # 8 bytes: two numbers of float32.
    per_head = 8 * -(-T // config.rows) * config.rows * -(-S // size)
    return min(B * H, max(1, MAX_SCRATCH // per_head))
