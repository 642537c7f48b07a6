"""Regard: attention you can read, check and see, at any length."""

from regard.attention.attend import attend, backend, which_backend
from regard.attention.masks.base import Mask, full
from regard.attention.masks.named import (
    alibi,
    causal,
    causal_mask,
    chunks,
    documents,
    padding,
    prefix,
    rule,
    tensor_mask,
    window,
)
from regard.attention.steps import scaled_dot_product_attention
from regard.checker import Report, check
from regard.maps import AttentionMap, attention_map
from regard.recorder import Capture, capture, capture_size, load
from regard.show import plot
from regard.version import __version__ as __version__

__all__ = [
    "AttentionMap",
    "Capture",
    "Mask",
    "Report",
    "alibi",
    "attend",
    "attention_map",
    "backend",
    "capture",
    "capture_size",
    "causal",
    "causal_mask",
    "check",
    "chunks",
    "documents",
    "full",
    "load",
    "padding",
    "plot",
    "prefix",
    "rule",
    "scaled_dot_product_attention",
    "tensor_mask",
    "which_backend",
    "window",
]
