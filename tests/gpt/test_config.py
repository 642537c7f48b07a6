"""`Config`: default sizes, refused values, and the round trip through JSON."""

from __future__ import annotations

import json

import pytest

from regard.gpt import Config
from regard.layers import Llama3Scaling
from tests.gpt.architectures import ARCHITECTURES, SIZES


def test_what_is_left_out_follows_from_the_sizes() -> None:
    config = Config(**SIZES)
    assert (config.num_kv_heads, config.head_dim, config.intermediate_size) == (4, 6, 96)
    assert config.windows == (None, None, None)
    # Two thirds of 4 · d_model, so that three matrices weigh what two did, rounded up to a multiple of 32.
    assert Config(**SIZES, activation="swiglu").intermediate_size == 64
    assert Config(**{**SIZES, "d_model": 240, "activation": "swiglu"}).intermediate_size == 640


def test_windows_of_the_layers() -> None:
    assert Config(**SIZES, window=5).windows == (5, 5, 5)
    assert Config(**SIZES, window=(None, 5, 7)).windows == (None, 5, 7)
    assert Config(**SIZES, window=(48, 47, 99)).windows == (None, 47, None)  # no narrower than the context


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_json_and_back(name: str) -> None:
    config = Config(
        **{**SIZES, **ARCHITECTURES[name], "rotary_scaling": Llama3Scaling(4.0), "eos_token_id": (2, 3)}
    )
    assert Config.from_json(json.loads(json.dumps(config.to_json()))) == config


WRONG: list[tuple[dict, str]] = [
    ({"num_layers": 0}, "num_layers: expected a whole number of at least 1, got 0"),
    ({"vocab_size": 2.5}, "vocab_size: expected a whole number of at least 1, got 2.5"),
    ({"num_heads": 5}, "num_heads: expected a divisor of d_model=24, got 5; or give head_dim"),
    ({"num_kv_heads": 3}, "num_kv_heads: expected a divisor of num_heads=4, got 3"),
    ({"num_kv_heads": 0}, "num_kv_heads: expected a whole number of at least 1, got 0"),
    ({"norm": "batch"}, "norm: expected one of 'layer', 'rms', got 'batch'"),
    ({"positions": "sine"}, "positions: expected one of 'learned', 'rotary', got 'sine'"),
    ({"activation": "relu"}, "activation: expected one of 'gelu', 'gelu_tanh', 'swiglu', got 'relu'"),
    ({"tie_word_embeddings": 1}, "tie_word_embeddings: expected True or False, got 1"),
    ({"norm_eps": 0.0}, "norm_eps: expected a number above 0, got 0.0"),
    (
        {"positions": "rotary", "head_dim": 5},
        "head_dim: expected an even number for rotary positions, got 5",
    ),
    ({"dropout": 1.0}, "dropout: expected a probability from 0 to below 1, got 1.0"),
    ({"window": (1, 2)}, "window: expected one for each of 3 layers, got 2"),
    ({"window": 0}, "window: expected a whole number of at least 1, got 0"),
    ({"eos_token_id": (61,)}, "eos_token_id: expected tokens below vocab_size=61, got 61"),
]


def test_what_cannot_be_is_refused() -> None:
    for changes, message in WRONG:
        with pytest.raises(ValueError) as caught:
            Config(**{**SIZES, **changes})
        assert str(caught.value).startswith(message)


def test_json_with_missing_and_unknown_names() -> None:
    with pytest.raises(ValueError, match="missing: num_heads, d_model"):
        Config.from_json({"vocab_size": 3, "context_length": 4, "num_layers": 1})
    with pytest.raises(ValueError, match="unknown keys depth, width; the fields of Config are vocab_size"):
        Config.from_json({**SIZES, "width": 3, "depth": 4})
    with pytest.raises(ValueError, match=r"rotary_scaling: .*speed"):
        Config.from_json({**SIZES, "rotary_scaling": {"speed": 3}})
