"""The block sizes, warps and stages of each Triton kernel: a plain table.

The figures come from `benchmarks/tune_triton.py`. Nothing is tuned at run time, so no call waits for it and
two runs give the same bits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class KernelConfig(NamedTuple):
    """The block size of a kernel, and the resources that it is launched with."""

    rows: int  # queries in a block
    cols: int  # keys in a block
    warps: int
    stages: int
    tma: bool = False  # load keys and values by the tensor memory accelerator, where their layout allows it


def choose(purpose: str, width: int, dtype: torch.dtype) -> KernelConfig:
    """The configuration for a purpose (a name in `CONFIGS`), a padded width and a dtype."""
    sizes = CONFIGS[purpose, dtype.itemsize]
    return next(config for most, config in sizes if width <= most)


# By purpose and bytes per element: (largest width, config), narrowest first.
# "cells" is a forward pass that also pools its weights into cells. "queries" and "keys" are the two kernels
# of the backward pass; "lists" and "lists backward" serve masks that are not bands, by lists of blocks; both
# backward kernels then have the same block size. "wide pool" pools into bins that are wider than a block,
# "spans" into unequal ones.
CONFIGS: dict[tuple[str, int], list[tuple[int, KernelConfig]]] = {
    ("forward", 2): [
        (64, KernelConfig(64, 64, 4, 3, True)),
        (128, KernelConfig(64, 64, 4, 3)),
        (256, KernelConfig(128, 32, 8, 2)),
    ],
    ("cells", 2): [(128, KernelConfig(64, 64, 4, 3, True)), (256, KernelConfig(128, 32, 8, 2))],
    ("forward", 4): [(64, KernelConfig(64, 32, 4, 2)), (256, KernelConfig(64, 16, 4, 2))],
    ("cells", 4): [(64, KernelConfig(64, 32, 4, 2)), (256, KernelConfig(64, 16, 4, 2))],
    ("lists", 2): [(128, KernelConfig(64, 64, 4, 3)), (256, KernelConfig(128, 64, 8, 2))],
    ("lists", 4): [(64, KernelConfig(64, 32, 4, 2)), (256, KernelConfig(64, 16, 4, 2))],
    ("queries", 2): [
        (64, KernelConfig(64, 64, 4, 2, True)),
        (128, KernelConfig(128, 64, 8, 3, True)),
        (256, KernelConfig(64, 32, 8, 1)),
    ],
    ("queries", 4): [(64, KernelConfig(32, 32, 4, 1)), (256, KernelConfig(16, 16, 4, 1))],
    ("keys", 2): [
        (64, KernelConfig(64, 64, 4, 2, True)),
        (128, KernelConfig(32, 64, 4, 3, True)),
        (256, KernelConfig(32, 64, 8, 1)),
    ],
    ("keys", 4): [(64, KernelConfig(32, 32, 4, 1)), (256, KernelConfig(16, 16, 4, 1))],
    ("lists backward", 2): [(128, KernelConfig(64, 64, 4, 2, True)), (256, KernelConfig(32, 32, 4, 1))],
    ("lists backward", 4): [(64, KernelConfig(32, 32, 4, 1)), (256, KernelConfig(16, 16, 4, 1))],
    ("pool", 2): [(128, KernelConfig(128, 128, 8, 2, True)), (256, KernelConfig(128, 64, 8, 2))],
    ("pool", 4): [(64, KernelConfig(64, 64, 4, 2)), (256, KernelConfig(64, 32, 4, 1))],
    ("wide pool", 2): [(128, KernelConfig(64, 64, 4, 2, True)), (256, KernelConfig(64, 64, 8, 2))],
    ("wide pool", 4): [(64, KernelConfig(64, 64, 4, 2)), (256, KernelConfig(64, 32, 4, 1))],
    ("spans", 2): [(128, KernelConfig(128, 64, 4, 3, True)), (256, KernelConfig(64, 64, 8, 2))],
    ("spans", 4): [(64, KernelConfig(64, 64, 4, 2)), (256, KernelConfig(64, 32, 4, 1))],
    ("column sums", 2): [(128, KernelConfig(64, 64, 4, 2, True)), (256, KernelConfig(128, 64, 8, 2))],
    ("column sums", 4): [(64, KernelConfig(64, 64, 4, 2)), (256, KernelConfig(64, 32, 4, 1))],
    ("row sums", 2): [(128, KernelConfig(128, 128, 8, 2, True)), (256, KernelConfig(128, 64, 8, 2))],
    ("row sums", 4): [(64, KernelConfig(64, 64, 4, 2)), (256, KernelConfig(64, 32, 4, 1))],
    ("topk", 2): [(128, KernelConfig(64, 64, 4, 2, True)), (256, KernelConfig(128, 64, 8, 2))],
    ("topk", 4): [(64, KernelConfig(64, 64, 4, 2)), (256, KernelConfig(64, 32, 4, 1))],
    ("row statistics", 2): [(128, KernelConfig(64, 64, 4, 3, True)), (256, KernelConfig(64, 64, 8, 2))],
    ("row statistics", 4): [(64, KernelConfig(64, 64, 4, 2)), (256, KernelConfig(64, 32, 4, 1))],
    ("statistics", 2): [(128, KernelConfig(64, 64, 4, 3, True)), (256, KernelConfig(64, 64, 8, 2))],
    ("statistics", 4): [(64, KernelConfig(64, 64, 4, 2)), (256, KernelConfig(64, 32, 4, 1))],
}

PRECISION = "tf32x3"
"""How float32 products are computed: three tf32 products are as exact as PyTorch's own kernels are."""
