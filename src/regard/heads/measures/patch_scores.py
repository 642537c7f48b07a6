"""Per-query scores of heads that attend among the patches of a picture, which have places and no order.

What compares positions along a text is not defined for them. Instead: how much goes to the query's own patch,
to the patches around it, to CLS and to registers, and how far away what a patch attends to is, in patches.
This file knows maps and layouts; it does not know pictures.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.maps import AttentionMap
from regard.pictures.patch_layout import PatchAxes, PatchLayout

PATCH_NAMES = ("neighbours", "cls", "registers", "patch_distance")
NEAREST = 1.5  # patches from one to its eight neighbours, at most
CHUNK = 1 << 22  # weights computed at a time


def patch_scores(m: AttentionMap, axes: PatchAxes, active: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Return each score of the queries of a map (B, H, T, S), and the queries for which it is defined.

    Both are (B, H, T). `axes` say what the queries and the keys are, `active` (B, h, T) which queries count.
    """
    B, H, T, S = m.matrix
    queries, keys = axes.queries.coordinates(T).to(m.device), axes.keys.coordinates(S).to(m.device)
    is_patch = ~queries[:, 0].isnan()  # (T,)
    kinds = {
        "cls": _is_named(axes.keys, "CLS", S, m.device),
        "registers": _is_named(axes.keys, "register ", S, m.device),
    }
    sums = {name: m.lse.new_zeros(B, H, T) for name in ("itself", "near", "on_patches", "far", *kinds)}
    for first in range(0, T, step := max(1, CHUNK // max(1, B * H * S))):
        rows = slice(first, min(first + step, T))
        weights = m.tile(rows, slice(0, S)).to(m.lse)  # (B, H, rows, S)
        apart = (queries[rows, None] - keys).norm(dim=-1)  # (rows, S), NaN where one is no patch
        near = (apart > 0) & (apart <= NEAREST)
        masks = {
            "near": near,
            "on_patches": ~apart.isnan(),
            "far": apart.nan_to_num(0.0),
            "itself": torch.arange(first, rows.stop, device=m.device)[:, None]
            == torch.arange(S, device=m.device),
            **{name: kind.expand(len(near), S) for name, kind in kinds.items()},
        }
        for name, mask in masks.items():
            sums[name][:, :, rows] = torch.einsum("bhrs,rs->bhr", weights, mask.to(weights))
    patches = active & is_patch
    scores = {
        "neighbours": (sums["near"], patches),
        "patch_distance": (
            # 1e-9: a query that gives nothing to patches has no distance, and is not defined below.
            sums["far"] / sums["on_patches"].clamp(min=1e-9),
            patches & (sums["on_patches"] > 0),
        ),
    }
    if T == S:
        scores["itself"] = (sums["itself"], active)
    scores |= {name: (sums[name], active) for name, kind in kinds.items() if bool(kind.any())}
    return scores


def _is_named(layout: PatchLayout, beginning: str, size: int, device: torch.device) -> Tensor:
    """Which of `size` tokens have a name that begins so, boolean (size,)."""
    tokens = [token for token, name in layout.special.items() if name.startswith(beginning) and token < size]
    is_named = torch.zeros(size, dtype=torch.bool, device=device)
    is_named[tokens] = True
    return is_named
