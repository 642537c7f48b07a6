"""Attention on tensors: the readable steps, masks, and backends that never build the T×S matrix."""
