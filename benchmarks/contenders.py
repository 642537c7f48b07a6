"""The implementations that are measured: eager attention, PyTorch's kernels, FlexAttention, and Regard's.

Each is a function of (q, k, v) for a given mask.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from regard.attention.masks.base import Mask

Call = Callable[[Tensor, Tensor, Tensor], Any]

WINDOW, DOCUMENT, PREFIX = 1024, 1500, 2048

GPU_KERNELS = {
    "sdpa cuDNN": SDPBackend.CUDNN_ATTENTION,
    "sdpa flash": SDPBackend.FLASH_ATTENTION,
    "sdpa efficient": SDPBackend.EFFICIENT_ATTENTION,
}


@functools.cache
def mask_by_name(name: str, T: int) -> Mask:
    """A mask for T tokens; documents have 1,500 tokens each."""
    if name == "documents":
        return regard.causal & regard.documents(torch.arange(T)[None] // DOCUMENT)
    return {
        "causal": regard.causal,
        "window": regard.causal & regard.window(WINDOW),
        "full": regard.full,
        "prefix": regard.causal | regard.prefix(PREFIX),
    }[name]


def eager(mask: str) -> Call:
    """Attention as models compute it for output_attentions=True, with several T×T matrices."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        scores = (q @ k.mT) * q.shape[-1] ** -0.5
        if mask != "full":
            T = q.shape[-2]
            allowed = mask_by_name(mask, T).tile(slice(0, T), slice(0, T), (T, T), device=q.device)
            scores = scores.masked_fill(~allowed, -torch.inf)
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
        "window": lambda b, h, q, k: (q >= k) & (k > q - WINDOW),
        "documents": lambda b, h, q, k: (q >= k) & (q // DOCUMENT == k // DOCUMENT),
        "prefix": lambda b, h, q, k: (q >= k) | (k < PREFIX),
        "full": None,
    }
    rule = rules[mask]
    block_mask = None if rule is None else create_block_mask(rule, None, None, T, T, device=device)
    compiled = torch.compile(flex_attention)
    return lambda q, k, v: compiled(q, k, v, block_mask=block_mask)


def ours(mask: str, T: int, backend: str = "auto") -> Call:
    rule = mask_by_name(mask, T)
    return lambda q, k, v: regard.attend(q, k, v, mask=rule, backend=backend)


def contenders(mask: str, T: int, device: str, heads: int, with_flex: bool) -> dict[str, Call]:
    """The implementations for a mask and a length. Eager is left out where its matrices would not fit."""
    calls: dict[str, Call] = {}
    if 3 * heads * T * T * (2 if device == "cuda" else 4) < (60 << 30 if device == "cuda" else 6 << 30):
        calls["eager with weights"] = eager(mask)
    if mask in ("causal", "full"):
        kernels = GPU_KERNELS if device == "cuda" else {"sdpa": None}
        calls |= {name: by_kernel(mask, kernel) for name, kernel in kernels.items()}
    if with_flex:
        calls["FlexAttention, compiled"] = flex(mask, T, device)
    calls["attend"] = ours(mask, T)
    if device != "cuda" or T <= 4096:  # on a GPU it serves what no kernel does
        calls["attend, tiled"] = ours(mask, T, "tiled")
    if device == "cuda":
        calls["attend, triton"] = ours(mask, T, "triton")
    return calls
