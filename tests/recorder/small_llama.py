"""A small Llama of Transformers, and attention functions for it, for tests of what a capture of it shows."""

from contextlib import contextmanager

import torch

from tests.against.small_sizes import LLAMA
from tests.against.test_capture_families import build

SIZES = LLAMA | {"max_position_embeddings": 256, "pad_token_id": None}


def small_llama(implementation="sdpa", **settings):
    """A model with weights large enough that its heads differ, the same every time."""
    torch.manual_seed(0)
    model = build("LlamaForCausalLM", SIZES | {"num_hidden_layers": 2} | settings)
    model.set_attn_implementation(implementation)
    return model


@contextmanager
def registered(masks, **functions):
    """Inside, Transformers knows attention functions by these names, and makes these masks for them."""
    from transformers import AttentionInterface, AttentionMaskInterface

    for name, function in functions.items():
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, masks)
    try:
        yield
    finally:
        for name in functions:
            del AttentionInterface._global_mapping[name], AttentionMaskInterface._global_mapping[name]
