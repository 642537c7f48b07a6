"""Is it the same attention that PyTorch has? One head beside the fused kernel, on the same weights."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from regard.stages.head import Head

TOLERANCE = 1e-6


class Difference(NamedTuple):
    """How far two results lie apart."""

    largest: float
    mean: float


def check_against_pytorch() -> Difference:
    """Compare `Head` with `F.scaled_dot_product_attention`: print and return the largest and mean difference.

    Raises AssertionError when they differ by more than 1e-6. The kernel adds in another order, so the last
    bits differ: the difference is small, but it is not zero by right.
    """
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers are not ours to use up
        torch.manual_seed(0)
        x = torch.randn(2, 6, 32)  # (B, T, n_embd)
        head = Head(n_embd=32, head_size=16, block_size=6).eval()

    with torch.no_grad():
        ours = head(x)  # (B, T, head_size)
        # PyTorch takes its fused kernel for (B, H, T, D) only.
        q, k, v = (project(x).unsqueeze(1) for project in (head.query, head.key, head.value))
        theirs = F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)
    apart = (ours - theirs).abs()
    difference = Difference(apart.max().item(), apart.mean().item())
    verdict = "agrees" if difference.largest <= TOLERANCE else "DISAGREES"
    print(
        f"{verdict} with torch {torch.__version__}: largest difference {difference.largest:.1e}, "
        f"mean {difference.mean:.1e}, tolerance {TOLERANCE:.0e}"
    )
    if difference.largest > TOLERANCE:
        raise AssertionError(
            f"expected a difference of at most {TOLERANCE:.0e}, got {difference.largest:.1e}"
        )
    return difference
