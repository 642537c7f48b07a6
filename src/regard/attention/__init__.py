"""The ground floor: attention on tensors. Steps, masks, and the paths that need no matrix."""

from regard.attention import steps

__all__ = ["steps"]
