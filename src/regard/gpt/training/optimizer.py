"""AdamW with weight decay on matrices only, and a learning rate with linear warmup and cosine decay."""

from __future__ import annotations

import math

import torch
from torch import nn


def adamw(model: nn.Module, *, weight_decay: float, betas: tuple[float, float]) -> torch.optim.AdamW:
    """Fused AdamW for a model. Matrices decay; vectors, which are biases and norms, do not."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    groups = [
        {"params": [weight for weight in weights if weight.ndim >= 2], "weight_decay": weight_decay},
        {"params": [weight for weight in weights if weight.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], betas=betas, fused=True)


def learning_rate(step: int, progress: float, *, warmup: int, highest: float, lowest: float) -> float:
    """The learning rate of a step: linear up to `highest`, then a half cosine down to `lowest`.

    `warmup` is the number of warmup steps, and `progress` the part of the run after them that is done, from 0
    to 1.

    >>> [learning_rate(step, step / 8, warmup=3, highest=4, lowest=0) for step in (0, 2, 4, 8)]
    [1.0, 3.0, 2.0, 0.0]
    """
    if step < warmup:
        return highest * (step + 1) / (warmup + 1)
    return lowest + (highest - lowest) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2
