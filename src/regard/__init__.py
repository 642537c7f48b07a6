"""Regard: attention you can read, check and see, at any length."""

from regard.attention.attend import attend, backend, explain
from regard.attention.masks.base import Mask, full
from regard.attention.masks.named import (
    alibi,
    causal,
    causal_mask,
    chunks,
    dense,
    documents,
    padding,
    prefix,
    rule,
    window,
)
from regard.attention.steps import scaled_dot_product_attention
from regard.checker import Report, check
from regard.maps import AttentionMap, weights
from regard.recorder import capture, capture_size, load
from regard.show import plot

__version__ = "0.1.0"

__all__ = [
    "AttentionMap",
    "Mask",
    "Report",
    "alibi",
    "attend",
    "backend",
    "capture",
    "capture_size",
    "causal",
    "causal_mask",
    "check",
    "chunks",
    "dense",
    "documents",
    "explain",
    "full",
    "load",
    "padding",
    "plot",
    "prefix",
    "rule",
    "scaled_dot_product_attention",
    "weights",
    "window",
]
