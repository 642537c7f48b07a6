"""Attention on tensors: the readable steps, masks, and backends that never build the T×S matrix."""

from regard.attention import steps

__all__ = ["steps"]
