"""The parameters of a GPT from its config alone are those of its modules."""

from __future__ import annotations

import itertools

import torch

from regard.gpt import GPT, Config
from regard.gpt.files.parameters import parameter_shapes


def test_the_shapes_are_those_of_the_modules() -> None:
    choices = {
        "norm": ("layer", "rms"),
        "positions": ("learned", "rotary"),
        "activation": ("gelu", "swiglu"),
        "qkv_bias": (False, True),
        "qk_norm": (False, True),
        "tie_word_embeddings": (False, True),
    }
    for values in itertools.product(*choices.values()):
        chosen = dict(zip(choices, values, strict=True))
        sizes = {"vocab_size": 11, "context_length": 7, "num_layers": 2, "num_heads": 4, "d_model": 24}
        biases = {"out_bias": chosen["qk_norm"], "mlp_bias": chosen["tie_word_embeddings"]}
        config = Config(**sizes, **chosen, **biases, num_kv_heads=2, head_dim=10, intermediate_size=36)
        with torch.device("meta"):
            modules = GPT(config).state_dict()
        assert parameter_shapes(config) == {name: tuple(x.shape) for name, x in modules.items()}
