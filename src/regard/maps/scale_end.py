"""Where the colours of a map end: in figures and notebooks, and on the page by the same rule.

The page has its own code for it (`parts/map_scale.js`), which a test compares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

BEYOND = 0.005  # of a map's cells lie beyond the end of its colours
OVERVIEW = 512  # cells along an axis, at most, that the colours are fitted to: two of the page's tiles
UNIFORM = 4  # the colours end at this many times the mean at least, so that equal cells are never dark


def overview_edges(shape: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return where the cells of a map (T, S) begin and end to which its colours are fitted.

    A cell is one token, or 2 × 2 of a longer map, 4 × 4 and so on: the same on the page, in figures and in
    notebooks, so that one head has the same colours everywhere.

    >>> [len(edges) - 1 for edges in overview_edges((325, 325))], overview_edges((2, 1025))[1][:3]
    ([325, 325], [0, 4, 8])
    """
    size = 2 ** max(0, math.ceil(math.log2(max(*shape, 1) / OVERVIEW)))
    rows, cols = ([*range(0, n, size), n] for n in shape)
    return rows, cols


def scale_end(values: Tensor, most: float = math.inf) -> float:
    """Return where the colours of these numbers end, to two digits; 0 if all are 0.

    All but `BEYOND` of them are smaller, whatever their signs, and it is well above their mean, which is the
    weight of uniform attention. `most` is the greatest end.

    >>> import torch
    >>> scale_end(torch.tensor([0.25, 0.25, 0.25, 0.25]), most=1.0)
    1.0
    >>> scale_end(torch.tensor([0.1] * 99 + [0.9]))
    0.43
    """
    if not values.numel():
        return 0.0
    # The sign does not count: the colours of a signed map end at the same distance from 0 on both sides.
    sizes = values.detach().double().abs().sort().values
    end = max(UNIFORM * float(sizes.mean()), float(sizes[math.floor((1 - BEYOND) * (len(sizes) - 1))]))
    return min(most, float(f"{end:.2g}"))
