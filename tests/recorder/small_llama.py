"""A small Llama of Transformers, for tests of what a capture of it shows."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def small_llama(implementation: str = "sdpa", **settings: Any) -> nn.Module:
    """A model with weights large enough that its heads differ, the same every time."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**sizes | settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
    model.set_attn_implementation(implementation)
    return model
