"""regard's own attention seen: a GPT that reads and writes, every cache; models with the layer inside."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard.gpt import GPT, Config
from regard.gpt.tokens import character_tokenizer
from regard.layers import KVCache, SinkCache, WindowCache
from tests.recorder.small_models import captured
from tests.sampling import combine, examples


def a_gpt(**changes):
    sizes = dict(vocab_size=32, context_length=64, num_layers=2, num_heads=4, d_model=32, positions="rotary")
    return GPT(Config(**(sizes | changes))).eval()


def assert_same(seen, maps, atol=1e-6):
    assert len(seen) == len(maps)
    for found, wanted in zip(seen, maps, strict=True):
        torch.testing.assert_close(found.to_dense(), wanted.to_dense(), atol=atol, rtol=1e-4)


@given(
    kv=st.sampled_from([1, 2, 4]),
    window=st.sampled_from([None, 3, (None, 4)]),
    positions=st.sampled_from(["rotary", "learned"]),
    qk_norm=st.booleans(),
    T=st.integers(1, 12),
    padded=st.booleans(),
)
def test_a_reading_gpt(kv, window, positions, qk_norm, T, padded):
    model = a_gpt(num_kv_heads=kv, window=window, positions=positions, qk_norm=qk_norm)
    ids = torch.randint(0, 32, (3, T))
    is_token = torch.arange(T) < torch.randint(1, T + 1, (3, 1)) if padded else None
    with torch.no_grad():
        seen = captured(model, ids, attention_mask=is_token)
    assert_same(seen, model.maps(ids, attention_mask=is_token), atol=0.0)
    assert torch.equal(seen.ids, ids)
    if padded and not bool(is_token.all()):
        assert torch.equal(seen.attention_mask, is_token)
    else:
        assert seen.attention_mask is None
    assert [layer.name for layer in seen.layers] == ["blocks.0.attention", "blocks.1.attention"]


@settings(max_examples=examples(25))
@given(
    kv=st.sampled_from([1, 4]),
    window=st.sampled_from([None, 4, (None, 3)]),
    new=st.integers(2, 9),
    B=st.integers(1, 2),
)
def test_a_writing_gpt_is_stitched_into_one_map(kv, window, new, B):
    model = a_gpt(num_kv_heads=kv, window=window)
    prompt = torch.randint(0, 32, (B, 6))
    plain = model.generate(prompt, max_new_tokens=new)
    with regard.capture(model) as seen:
        assert torch.equal(model.generate(prompt, max_new_tokens=new), plain)
    assert seen.boundary == 6
    assert torch.equal(seen.ids, plain[:, :-1])  # the last token is written and never read
    assert seen.certificate.certified
    assert not seen.passes
    assert_same(seen, model.maps(plain[:, :-1]))
    wanted = model.maps(plain[:, :-1])
    assert [str(m.mask) for m in seen] == [str(m.mask) for m in wanted]


def test_prompts_of_different_lengths_generate_together():
    model = a_gpt()
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8]]
    plain = model.generate(prompts, max_new_tokens=4)
    with regard.capture(model) as seen:
        assert model.generate(prompts, max_new_tokens=4) == plain
    assert seen[0].shape == (2, 4, 8, 8)
    assert seen.attention_mask.tolist() == [[False] * 2 + [True] * 6, [True] * 8]
    alone = model.maps(torch.tensor([plain[0][:-1]]))
    torch.testing.assert_close(
        seen[1][0, :, 2:].to_dense()[..., 2:], alone[1][0].to_dense(), atol=1e-6, rtol=1e-4
    )
    assert float(seen[1][0, :, 2:].to_dense()[..., :2].abs().max()) == 0.0


CACHES = [
    KVCache,
    lambda: WindowCache(4),
    lambda: SinkCache(2, 4),
    lambda: SinkCache(0, 3),
    lambda: SinkCache(1, 20),
]


@pytest.mark.parametrize(
    ("cache", "cuts"), combine(CACHES, [[5, 1, 1, 1, 1, 1, 1, 1], [1] * 12, [3, 4, 5], [12]])
)
def test_every_cache_is_stitched(cache, cuts):
    model = a_gpt(num_kv_heads=2)
    ids = torch.randint(0, 32, (2, 12))
    caches = [cache() for _ in range(2)]
    with torch.no_grad(), regard.capture(model) as seen:
        for part in ids.split(cuts, 1):
            model(part, cache=caches)
    assert seen[0].shape == (2, 4, 12, 12)
    assert torch.equal(seen.ids, ids)
    assert seen.certificate.certified, str(seen.certificate)
    assert_same(seen, model.maps(ids, mask=caches[0].rule))


def test_a_capture_that_comes_late_shows_what_is_held():
    model = a_gpt()
    ids = torch.randint(0, 32, (1, 12))
    caches = [SinkCache(2, 3) for _ in range(2)]
    with torch.no_grad():
        model(ids[:, :9], cache=caches)
        with regard.capture(model) as seen:
            model(ids[:, 9:], cache=caches)
    assert seen.certificate.certified
    assert seen[0].shape[2] == 3


def test_text_goes_in_and_tokens_come_out():
    model = a_gpt(vocab_size=9)
    model.tokenizer = character_tokenizer("abcdefgh ")
    seen = regard.capture(model, text="a bad cab")
    assert seen.tokens == [list("a bad cab")]
    assert seen.ids.tolist() == [model.tokenizer.encode("a bad cab").ids]
    assert repr(seen) == "Capture(GPT, 2 layers of 1×4×9×9, 2 certified)"
    with regard.capture(model) as seen:
        text = model.generate("a bad", max_new_tokens=4)
    assert "".join(seen.tokens[0]) == text[:-1]
    assert seen.boundary == 5
