"""The cache measurement: tokens, counts, bytes and times against the dense computation."""

from __future__ import annotations

import pytest
import torch

from regard.gpt import GPT, Config
from regard.gpt.cache_demo import compare_with_and_without_cache

SMALL = Config(
    vocab_size=64,
    context_length=48,
    num_layers=3,
    num_heads=4,
    d_model=32,
    num_kv_heads=2,
    positions="rotary",
)
PROMPT = [5, 9, 2, 33, 5, 9, 2, 40, 1, 7]


def model(config: Config = SMALL) -> GPT:
    gpt = GPT(config).eval()
    with torch.no_grad():
        for block in gpt.blocks:
            block.attention.qkv.weight *= 20  # sharper than that of an untrained model
    return gpt


def test_it_writes_what_generate_writes_and_both_ways_agree() -> None:
    gpt = model()
    steps = list(compare_with_and_without_cache(gpt, PROMPT, tokens=12))
    assert PROMPT + [step.token_id for step in steps] == gpt.generate(PROMPT, max_new_tokens=12)
    assert all(step.same and step.difference < 1e-3 for step in steps)
    assert any(step.difference > 0 for step in steps), "two ways of computing never agree to the last bit"
    assert [step.position for step in steps] == list(range(10, 22))
    assert all(step.seconds.cached > 0 and step.seconds.recomputed > 0 for step in steps)


def test_computed_tokens_read_keys_and_cached_bytes_are_counted() -> None:
    first, second, *_ = compare_with_and_without_cache(model(), PROMPT, tokens=3)
    layers, kv_heads, width = 3, 2, 8
    assert first.computed == (10, 10)
    assert second.computed == (1, 11)
    assert first.keys_read == (layers * kv_heads * 55, layers * kv_heads * 55)
    assert second.keys_read == (layers * kv_heads * 11, layers * kv_heads * 66)
    one_token = layers * kv_heads * width * 2 * 4  # keys and values in float32
    assert (first.cache_bytes, second.cache_bytes) == (10 * one_token, 11 * one_token)


def test_layers_with_a_window_cache_and_read_less() -> None:
    config = Config(vocab_size=64, context_length=48, num_layers=2, num_heads=4, d_model=32, window=(None, 6))
    gpt = model(config)
    *_, last = compare_with_and_without_cache(gpt, PROMPT, tokens=5)
    full, short = 14, 6  # keys that the newest token sees
    assert last.cache_bytes == (full + short) * 4 * 8 * 2 * 4
    assert last.keys_read.cached == (full + short) * 4
    assert last.same


def test_it_ends_with_an_end_token_and_with_the_context() -> None:
    gpt = model()
    written = [step.token_id for step in compare_with_and_without_cache(gpt, PROMPT, tokens=100)]
    assert len(written) == 48 - 10
    ending = GPT(Config(**{**vars(SMALL), "eos_token_id": (written[2],)})).eval()
    ending.load_state_dict(gpt.state_dict())
    stopped = [step.token_id for step in compare_with_and_without_cache(ending, PROMPT, tokens=100)]
    assert stopped == written[: written.index(written[2]) + 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": 0}, "tokens"),
        ({"prompt": []}, "prompt: expected from 1 to 47 tokens, got 0"),
        ({"prompt": [1] * 48}, "prompt: expected from 1 to 47 tokens, got 48"),
    ],
)
def test_bad_arguments_are_refused_at_once(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare_with_and_without_cache(model(), **{"prompt": PROMPT, **options})
