"""A small Llama of Transformers, for tests of what a capture of it shows."""

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
