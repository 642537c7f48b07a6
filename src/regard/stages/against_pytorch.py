"""Stage 5, a check: one head beside PyTorch's fused attention, on the same weights."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from regard.stages.head import Head

TOLERANCE = 1e-6


class Difference(NamedTuple):
    """The largest and the mean absolute difference of two results."""

    largest: float
    mean: float


def check_against_pytorch() -> Difference:
    """Compare `Head` with `F.scaled_dot_product_attention`; print and return the largest and mean difference.

    Raises AssertionError if they differ by more than 1e-6. PyTorch's kernel adds in another order, so the
    last bits may differ.
    """
    with torch.random.fork_rng(devices=[]):  # leaves the caller's random state unchanged
        torch.manual_seed(0)
        x = torch.randn(2, 6, 32)  # (B, T, d_model)
        head = Head(d_model=32, head_dim=16, max_seq_len=6).eval()

    with torch.no_grad():
        output = head(x)  # (B, T, head_dim)
        # PyTorch uses its fused kernel for (B, H, T, D) only.
        q, k, v = (project(x).unsqueeze(1) for project in (head.W_q, head.W_k, head.W_v))
        reference = F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)
    error = (output - reference).abs()
    difference = Difference(error.max().item(), error.mean().item())
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
