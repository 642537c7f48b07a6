"""Modules with weights: attention as models use it, with rotary positions, RMSNorm and key/value caches."""

from regard.layers.attention import Attention
from regard.layers.cache import KVCache, SinkCache, WindowCache
from regard.layers.norm import RMSNorm
from regard.layers.rotary import Llama3Scaling, Rotary

__all__ = ["Attention", "KVCache", "Llama3Scaling", "RMSNorm", "Rotary", "SinkCache", "WindowCache"]
