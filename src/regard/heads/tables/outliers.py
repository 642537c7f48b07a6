"""Outlier patches: patches of a picture that receive far more attention than the others do.

Vision transformers without registers use some patches, often of plain background, as registers are used
(Darcet 2023): many queries attend to them whatever they show. This file knows numbers, not pictures.
"""

from __future__ import annotations

from torch import Tensor

TIMES_MEDIAN = 4
"""How many times the median of all patches an outlier receives, at least."""
TIMES_UNIFORM = 3
"""How many times the weight of uniform attention it receives, at least."""
MOST = 8
"""The most outliers of a head."""


def find_outlier_keys(received: Tensor, is_patch: Tensor) -> list[list[int]]:
    """Return the outliers of every head, those that receive the most first.

    Arguments:
        received: the mean weight on each key, (H, S).
        is_patch: True for the keys that are patches, boolean (S,).

    >>> import torch
    >>> received = torch.tensor([[0.1, 0.02, 0.6, 0.03, *[0.025] * 10]])
    >>> find_outlier_keys(received, torch.tensor([False] + [True] * 13))
    [[2]]
    """
    is_patch = is_patch.to(received.device)
    if not bool(is_patch.any()):
        return [[] for _ in received]
    least = received[:, is_patch].median(-1, keepdim=True).values * TIMES_MEDIAN  # (H, 1)
    # Where most patches receive nothing, anything would be four times the median.
    least = least.clamp(min=TIMES_UNIFORM / received.shape[1])
    outliers = (received >= least) & is_patch
    shares, keys = received.where(outliers, 0.0).topk(min(MOST, received.shape[1]), dim=-1)
    return [
        [key for key, share in zip(*pair, strict=True) if share > 0]
        for pair in zip(keys.tolist(), shares.tolist(), strict=True)
    ]
