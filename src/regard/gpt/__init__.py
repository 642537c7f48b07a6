"""A GPT of `regard.layers`: its config and blocks, pretrained weights, generation and training."""

from regard.gpt.config import Config
from regard.gpt.model import GPT

__all__ = ["GPT", "Config"]
