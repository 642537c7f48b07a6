"""One check of whole numbers for every public argument, and answers to PyTorch's argument names."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard import stages
from regard.attention.arguments import PYTORCH_ARGUMENTS
from regard.gpt import Config
from regard.gpt.sampler import Sampler
from regard.gpt.training.settings import TrainingSettings
from regard.heads.repeated_tokens import repeated
from regard.layers import Attention, KVCache, Rotary, SinkCache, WindowCache
from regard.show.server.limits import RefusedError, check_number
from tests.sampling import together

X = torch.randn(1, 2, 6, 4)
SIZES = (16, 8, 2, 2, 4)  # vocabulary, context, layers, heads, width
CALLERS: dict[str, Callable[[Any], object]] = {
    "window": regard.window,
    "prefix": regard.prefix,
    "chunks": regard.chunks,
    "KVCache": KVCache,
    "WindowCache": WindowCache,
    "SinkCache(first)": lambda n: SinkCache(n, 4),
    "Rotary": Rotary,
    "Attention(d_model)": lambda n: Attention(n, 2),
    "Attention(num_heads)": lambda n: Attention(8, n),
    "MultiHeadAttention": lambda n: stages.MultiHeadAttention(8, 8, n),
    "LearnedPositions": lambda n: stages.LearnedPositions(8, n),
    "alibi_bias": lambda n: stages.alibi_bias(n, 3),
    "SmallGPT(vocab_size)": lambda n: stages.SmallGPT(n, 8, 8, 2, 1),
    "pool(rows)": lambda n: regard.attention_map(X, X).pool(n, 2),
    "topk": lambda n: regard.attention_map(X, X).topk(n),
    "repeated": lambda n: repeated(50, tokens=n),
    "Config(layers)": lambda n: Config(16, 8, n, 2, 4),
    "Config(window)": lambda n: Config(*SIZES, window=n),
    "TrainingSettings(steps)": lambda n: TrainingSettings(steps=n),
    "Sampler(top_k)": lambda n: Sampler(1.0, top_k=n),
    "capture_size": lambda n: regard.capture_size(Config(*SIZES), n),
    "the server": lambda n: check_number("tokens", n, 1, 8),
}


@pytest.mark.parametrize("name", CALLERS)
@together("n", [4, np.int64(4), np.int32(4), torch.tensor(4)])
def test_every_integer_is_a_whole_number(name, n):
    CALLERS[name](n)


@pytest.mark.parametrize("name", CALLERS)
@together("wrong", [True, 2.5, np.float64(4), np.bool_(True), torch.tensor(True), [4]])
def test_nothing_else_is(name, wrong):
    # A pool takes increasing edges beside a number of cells.
    edges = name.startswith("pool") and isinstance(wrong, list)
    message = "expected at least two increasing positions" if edges else "expected a whole number"
    with pytest.raises((ValueError, RefusedError), match=message):
        CALLERS[name](wrong)


def test_numbers_are_stored_as_plain_integers():
    layer = Attention(np.int64(8), np.int64(4), num_kv_heads=np.int64(2), head_dim=np.int64(2))
    sizes = (layer.d_model, layer.num_heads, layer.num_kv_heads, layer.head_dim)
    assert {type(size) for size in (*sizes, KVCache(np.int64(4)).max_length)} == {int}
    config = Config(*map(np.int64, SIZES), window=(np.int64(4), None))
    assert config == Config(*SIZES, window=(4, None))
    assert {type(size) for size in dataclasses.astuple(config)[:8]} == {int}


FUNCTIONS = {
    "attend": lambda **other: regard.attend(X, X, X, **other),
    "scaled_dot_product_attention": lambda **other: regard.scaled_dot_product_attention(X, X, X, **other),
    "attention_map": lambda **other: regard.attention_map(X, X, **other),
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    ("argument", "advice"),
    [
        ({"attn_mask": torch.ones(6, 6).bool()}, "write mask="),
        ({"is_causal": True}, "write mask=regard.causal"),
        ({"dropout_p": 0.1}, "write dropout="),
        ({"enable_gqa": True}, "leave it out"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_arguments_of_pytorch_are_answered_with_what_to_write(function, argument, advice):
    (name,) = argument
    with pytest.raises(TypeError, match=rf"^{function}\(\) has no argument '{name}': {advice}"):
        FUNCTIONS[function](**argument)
    with pytest.raises(TypeError, match="unexpected keyword argument 'mistyped'"):
        FUNCTIONS[function](mistyped=1)


def test_every_argument_of_pytorch_is_known_or_answered():
    theirs = {"query", "key", "value", *PYTORCH_ARGUMENTS, "scale"}
    text = torch.nn.functional.scaled_dot_product_attention.__doc__ or ""
    signature = text[text.index("(") + 1 : text.index(")")]
    assert {part.split("=")[0].split(":")[0].strip(" *\n") for part in signature.split(",")} <= theirs | {""}
