"""Small models of every way in which attention is captured, and all that a capture might leave in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard.gpt import GPT, Config

LAYERS, VOCABULARY = 3, 97


class Encoder(nn.Module):
    """PyTorch's own encoder over token ids."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.encoder(self.embedding(ids))


def llama(implementation: str) -> nn.Module:
    """A small model of Transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    model.set_attn_implementation(implementation)
    return model


def gpt() -> nn.Module:
    """A small GPT of ours."""
    sizes = {"context_length": 128, "num_layers": LAYERS, "d_model": 32, "num_heads": 4}
    return GPT(Config(vocab_size=VOCABULARY, **sizes))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "Llama, sdpa": lambda: llama("sdpa"),
    "Llama, eager": lambda: llama("eager"),
    "Llama, regard": lambda: llama("regard"),
    "GPT": gpt,
    "torch.nn.TransformerEncoder": Encoder,
}


def state(model: nn.Module) -> list[Any]:
    """Everything that a capture might leave in a model and its classes."""
    return [
        (name, sorted(vars(module)), len(module._forward_hooks), type(module).forward)
        for name, module in model.named_modules()
    ] + [getattr(type(model), "states", None), torch.nn.functional.scaled_dot_product_attention]
