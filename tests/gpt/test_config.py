"""`Config`: what follows from what, what is refused, and the way to JSON and back."""

from __future__ import annotations

import json

import pytest

from regard.gpt import Config
from regard.layers import Llama3Scaling
from tests.gpt.architectures import ARCHITECTURES, SIZES


def test_what_is_left_out_follows_from_the_sizes() -> None:
    config = Config(**SIZES)
    assert (config.kv_heads, config.head_width, config.hidden) == (4, 6, 96)
    assert config.windows == (None, None, None)
    # Two thirds of 4 · width, so that three matrices weigh what two did, rounded up to a multiple of 32.
    assert Config(**SIZES, activation="swiglu").hidden == 64
    assert Config(**{**SIZES, "width": 240, "activation": "swiglu"}).hidden == 640


def test_windows_of_the_layers() -> None:
    assert Config(**SIZES, window=5).windows == (5, 5, 5)
    assert Config(**SIZES, window=(None, 5, 7)).windows == (None, 5, 7)
    assert Config(**SIZES, window=(48, 47, 99)).windows == (None, 47, None)  # no narrower than the context


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_json_and_back(name: str) -> None:
    config = Config(**{**SIZES, **ARCHITECTURES[name], "rotary_scaling": Llama3Scaling(4.0), "end": (2, 3)})
    assert Config.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 0}, "layers: expected a whole number of at least 1, got 0"),
        ({"vocab_size": 2.5}, "vocab_size: expected a whole number of at least 1, got 2.5"),
        ({"heads": 5}, "heads: expected a divisor of width=24, got 5; or give head_width"),
        ({"kv_heads": 3}, "kv_heads: expected a divisor of heads=4, got 3"),
        ({"kv_heads": 0}, "kv_heads: expected a whole number of at least 1, got 0"),
        ({"norm": "batch"}, "norm: expected one of 'layer', 'rms', got 'batch'"),
        ({"positions": "sine"}, "positions: expected one of 'learned', 'rotary', got 'sine'"),
        ({"activation": "relu"}, "activation: expected one of 'gelu', 'gelu_tanh', 'swiglu', got 'relu'"),
        ({"tied": 1}, "tied: expected True or False, got 1"),
        ({"norm_eps": 0.0}, "norm_eps: expected a number above 0, got 0.0"),
        ({"positions": "rotary", "head_width": 5}, "head_width: expected an even number for rotary, got 5"),
        ({"dropout": 1.0}, "dropout: expected a probability from 0 to below 1, got 1.0"),
        ({"window": (1, 2)}, "window: expected one for each of 3 layers, got 2"),
        ({"window": 0}, "window: expected a whole number of at least 1, got 0"),
        ({"end": (61,)}, "end: expected tokens below vocab_size=61, got 61"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        Config(**{**SIZES, **changes})
    assert str(caught.value).startswith(message)


def test_json_with_missing_and_unknown_names() -> None:
    with pytest.raises(ValueError, match="missing: heads, width"):
        Config.from_json({"vocab_size": 3, "context": 4, "layers": 1})
    with pytest.raises(ValueError, match="got depth, size"):
        Config.from_json({**SIZES, "size": 3, "depth": 4})
    with pytest.raises(ValueError, match=r"rotary_scaling: .*speed"):
        Config.from_json({**SIZES, "rotary_scaling": {"speed": 3}})
