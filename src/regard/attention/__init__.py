"""Attention on tensors: the readable steps, masks, and backends that never build the T×S matrix."""

from regard.attention import steps
from regard.attention.attend import backend
from regard.attention.context_parallel.rows import ring_positions

__all__ = ["backend", "ring_positions", "steps"]
