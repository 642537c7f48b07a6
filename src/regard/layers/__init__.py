"""Modules with weights: the attention of a real model, its positions, its norm and its cache."""

from regard.layers.attention import Attention
from regard.layers.cache import KVCache, SinkCache, WindowCache
from regard.layers.norm import RMSNorm
from regard.layers.rotary import Llama3Scaling, Rotary

__all__ = ["Attention", "KVCache", "Llama3Scaling", "RMSNorm", "Rotary", "SinkCache", "WindowCache"]
