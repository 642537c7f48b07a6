"""The block sizes, warps and stages of each Triton kernel: the table in `configs.toml`.

Nothing is tuned at run time, so no call waits for it and two runs give the same bits.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
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


CONFIGS: dict[tuple[str, int], list[tuple[int, KernelConfig]]] = {
    (purpose, int(itemsize)): [(int(most), KernelConfig(*numbers)) for most, numbers in widths.items()]
    for purpose, sizes in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items()
    for itemsize, widths in sizes.items()
}
"""By purpose and bytes per element: (largest width, config), narrowest first."""

PRECISION = "tf32x3"
"""How float32 products are computed: three tf32 products are as exact as PyTorch's own kernels are."""
