"""The implementations that are measured: eager attention, PyTorch's kernels, FlexAttention, and Regard's.

Each is a function of (q, k, v) for a given mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard

Call = Callable[[Tensor, Tensor, Tensor], Any]

MASKS = {"causal": regard.causal, "window": regard.causal & regard.window(1024), "full": regard.full}
GPU_KERNELS = {
    "sdpa cuDNN": SDPBackend.CUDNN_ATTENTION,
    "sdpa flash": SDPBackend.FLASH_ATTENTION,
    "sdpa efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def eager(mask: str) -> Call:
    """Attention as models compute it for output_attentions=True, with several T×T matrices."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        scores = (q @ k.mT) * q.shape[-1] ** -0.5
        if mask != "full":
            allowed = MASKS[mask].tile(
                slice(0, q.shape[-2]), slice(0, k.shape[-2]), (q.shape[-2], k.shape[-2])
            )
            scores = scores.masked_fill(~allowed.to(q.device), -torch.inf)
        weights = scores.softmax(-1, dtype=torch.float32).to(q.dtype)
        return weights @ v, weights

    return run


def by_kernel(mask: str, kernel: SDPBackend | None) -> Call:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if kernel is None:
            return sdpa(q, k, v, is_causal=mask == "causal")
        with sdpa_kernel(kernel):
            return sdpa(q, k, v, is_causal=mask == "causal")

    return run


def flex(mask: str, T: int, device: str) -> Call:
    """Compiled FlexAttention with a block mask."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    rules = {
        "causal": lambda b, h, q, k: q >= k,
        "window": lambda b, h, q, k: (q >= k) & (k > q - 1024),
        "full": None,
    }
    rule = rules[mask]
    block_mask = None if rule is None else create_block_mask(rule, None, None, T, T, device=device)
    compiled = torch.compile(flex_attention)
    return lambda q, k, v: compiled(q, k, v, block_mask=block_mask)


def ours(mask: str, backend: str = "auto") -> Call:
    return lambda q, k, v: regard.attend(q, k, v, mask=MASKS[mask], backend=backend)


def contenders(mask: str, T: int, device: str, heads: int, with_flex: bool) -> dict[str, Call]:
    """The implementations for a mask and a length. Eager is left out where its matrices would not fit."""
    calls: dict[str, Call] = {}
    if 3 * heads * T * T * (2 if device == "cuda" else 4) < (60 << 30 if device == "cuda" else 6 << 30):
        calls["eager with weights"] = eager(mask)
    if mask != "window":
        kernels = GPU_KERNELS if device == "cuda" else {"sdpa": None}
        calls |= {name: by_kernel(mask, kernel) for name, kernel in kernels.items()}
    if with_flex:
        calls["FlexAttention, compiled"] = flex(mask, T, device)
    calls["attend"] = ours(mask)
    if device != "cuda" or T <= 16384:
        calls["attend, tiled"] = ours(mask, "tiled")
    if device == "cuda":
        calls["attend, triton"] = ours(mask, "triton")
    return calls
