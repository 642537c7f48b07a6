"""A GPT made of these parts: its config, its blocks, real weights, generation and training."""

from regard.gpt.config import Config
from regard.gpt.model import GPT

__all__ = ["GPT", "Config"]
