"""Small models of every architecture, with weights large enough that a misplaced one changes the output."""

import torch
from torch import nn

from regard.gpt import GPT, Config

SIZES = {"vocab_size": 61, "context_length": 48, "num_layers": 3, "num_heads": 4, "d_model": 24}
LLAMA = {
    "num_kv_heads": 2,
    "norm": "rms",
    "positions": "rotary",
    "activation": "swiglu",
    "tie_word_embeddings": False,
}

ARCHITECTURES = {
    "gpt2": {"qkv_bias": True, "out_bias": True, "mlp_bias": True},
    "llama": LLAMA,
    "mistral": LLAMA | {"window": 5},
    "qwen2": LLAMA | {"qkv_bias": True, "window": (None, 5, 7)},
    "qwen3": LLAMA | {"qk_norm": True, "head_dim": 10},
    "learned positions, windows": {"window": 6, "activation": "gelu"},
}


def small(name, **changes):
    """A small model by the name of its architecture, in eval mode, the same every time."""
    model = GPT(Config(**{**SIZES, **ARCHITECTURES[name], **changes}))
    generator = torch.Generator().manual_seed(1)
    for part, weight in model.named_parameters():
        mean = 1.0 if part.endswith("norm.weight") else 0.0
        nn.init.normal_(weight, mean=mean, std=0.25, generator=generator)
    return model.eval()
