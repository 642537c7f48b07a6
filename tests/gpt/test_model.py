"""The model and its config: every architecture, with and without cache and padding; maps and files."""

import json

import pytest
import torch
from tokenizers import Tokenizer, models

from regard import causal, window
from regard.gpt import GPT, Config
from regard.layers import Llama3Scaling
from tests.gpt.architectures import ARCHITECTURES, SIZES, small
from tests.sampling import combine

names = pytest.mark.parametrize("name", ARCHITECTURES)
CUTS = [(0, 7), (7, 8), (8, 9), (9, 15), (15, 16)]


def random_ids(B=2, T=16):
    return torch.randint(0, 61, (B, T), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(("name", "side"), combine(ARCHITECTURES, ["left", "right"]))
def test_padding_changes_nothing(name, side):
    """Each text in a padded batch gets the logits that it gets alone, with a cache and without."""
    model, lengths, T = small(name), [16, 9, 1], 16
    texts = [random_ids(1, n)[0] for n in lengths]
    ids, is_token = torch.full((3, T), 60), torch.zeros(3, T, dtype=torch.bool)
    for row, text in enumerate(texts):
        at = slice(T - len(text), T) if side == "left" else slice(0, len(text))
        ids[row, at], is_token[row, at] = text, True
    with torch.no_grad():
        alone = torch.cat([model(text[None])[0] for text in texts])
        assert alone.std() > 0.5  # large enough for what follows to mean something
        for attention_mask in (is_token, is_token.long()):  # booleans, or 0 and 1 as Transformers has them
            logits = model(ids, attention_mask=attention_mask)
            assert torch.allclose(logits[is_token], alone, rtol=1e-4, atol=1e-5)
        cache = model.caches()
        parts = [model(ids[:, a:b], attention_mask=is_token[:, :b], cache=cache) for a, b in CUTS]
        assert torch.allclose(torch.cat(parts, 1)[is_token], alone, rtol=1e-4, atol=1e-5)


@names
def test_maps_are_the_weights_and_leave_the_model_as_it_was(name):
    model, ids = small(name), random_ids()
    with torch.no_grad():
        before = model(ids)
        maps = model.maps(ids)
        assert torch.equal(model(ids), before)
    assert [m.shape for m in maps] == [(2, 4, 16, 16)] * 3
    for size, m in zip(model.config.windows, maps, strict=True):
        rule = causal if size is None else causal & window(size)
        assert torch.equal(m.to_dense() > 0, rule.to_dense(16).expand(2, 4, 16, 16))
        assert torch.allclose(m.to_dense().sum(-1), torch.ones(2, 4, 16))
    # The weights of the map times the values give the output of the layer.
    first = model.blocks[0]
    x = model._embed(ids, 0, None)
    with torch.no_grad():
        _, _, v, _ = first.attention._project(first.attention_norm(x), None)
        mixed = maps[0].to_dense() @ v.repeat_interleave(4 // v.shape[1], 1)
        assert torch.allclose(
            first.attention.out(mixed.transpose(1, 2).flatten(2)),
            first.attention(first.attention_norm(x)),
            atol=1e-5,
        )


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (
            torch.zeros(2, 49, dtype=torch.long),
            "input_ids: expected at most context_length=48 tokens, got 49",
        ),
        (torch.zeros(3, dtype=torch.long), r"input_ids: expected integers \(batch, length\), got \(3,\)"),
        (torch.zeros(2, 3), "input_ids: expected integers .* got .2, 3. torch.float32"),
        (torch.tensor([[0, -1]]), "input_ids: expected tokens from 0 to 60, got -1 to 0"),
        ([[1, 2]], "input_ids: expected a torch.Tensor, got list"),
    ],
)
def test_bad_ids(ids, message):
    with pytest.raises(ValueError, match=message):
        small("gpt2")(ids)


def test_bad_caches_and_attention_masks():
    model, ids = small("llama"), random_ids(2, 30)
    cache = model.caches()
    model(ids, cache=cache)
    with pytest.raises(ValueError, match="at most context_length=48 tokens, got 30 after 30 in the cache"):
        model(ids, cache=cache)
    with pytest.raises(ValueError, match="cache: expected 3 caches, one for each layer, got 2"):
        model(ids, cache=model.caches()[:2])
    with pytest.raises(ValueError, match=r"attention_mask: expected booleans or integers \(2, 30\)"):
        model(ids, attention_mask=torch.zeros(2, 29, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"attention_mask: expected booleans or integers .* torch.float32"):
        model(ids, attention_mask=torch.ones(2, 30))


@names
def test_saved_and_opened_again(name, tmp_path):
    model, ids = small(name), random_ids()
    model.tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    model.save(tmp_path / "model")
    again = GPT.from_pretrained(tmp_path / "model")
    assert again.config == model.config
    assert not again.training
    assert again.tokenizer.to_str() == model.tokenizer.to_str()
    assert torch.equal(again(ids), model(ids))
    assert all(weight.requires_grad for weight in again.parameters())
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]


def test_half_precision_on_disk_and_in_memory(tmp_path):
    """The dtype on disk is the model's; in memory it is float32, or what the files have."""
    model = small("llama").bfloat16()
    model.save(tmp_path)
    kept, full = GPT.from_pretrained(tmp_path, dtype=None), GPT.from_pretrained(tmp_path)
    for name, weight in model.state_dict().items():
        assert kept.state_dict()[name].dtype == torch.bfloat16
        assert torch.equal(kept.state_dict()[name], weight)
        assert full.state_dict()[name].dtype == torch.float32
        assert torch.equal(full.state_dict()[name], weight.float())


def test_a_save_that_fails_leaves_the_old_model(tmp_path, monkeypatch):
    old = small("gpt2")
    old.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full_disk(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(json, "dumps", full_disk)  # the weights are written by then
    with pytest.raises(OSError, match="No space left"):
        small("llama").save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_saving_without_a_tokenizer_removes_a_stale_one(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    small("gpt2").save(tmp_path)
    assert GPT.from_pretrained(tmp_path).tokenizer is None


def test_what_is_left_out_follows_from_the_sizes():
    config = Config(**SIZES)
    assert (config.num_kv_heads, config.head_dim, config.intermediate_size) == (4, 6, 96)
    assert config.windows == (None, None, None)
    # Two thirds of 4 · d_model, so that three matrices weigh what two did, rounded up to a multiple of 32.
    assert Config(**SIZES, activation="swiglu").intermediate_size == 64
    assert Config(**{**SIZES, "d_model": 240, "activation": "swiglu"}).intermediate_size == 640


def test_windows_of_the_layers():
    assert Config(**SIZES, window=5).windows == (5, 5, 5)
    assert Config(**SIZES, window=(None, 5, 7)).windows == (None, 5, 7)
    assert Config(**SIZES, window=(48, 47, 99)).windows == (None, 47, None)  # no narrower than the context


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_json_and_back(name):
    config = Config(
        **{**SIZES, **ARCHITECTURES[name], "rotary_scaling": Llama3Scaling(4.0), "eos_token_id": (2, 3)}
    )
    assert Config.from_json(json.loads(json.dumps(config.to_json()))) == config


WRONG = [
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


def test_what_cannot_be_is_refused():
    for changes, message in WRONG:
        with pytest.raises(ValueError) as caught:
            Config(**{**SIZES, **changes})
        assert str(caught.value).startswith(message)


def test_json_with_missing_and_unknown_names():
    with pytest.raises(ValueError, match="missing: num_heads, d_model"):
        Config.from_json({"vocab_size": 3, "context_length": 4, "num_layers": 1})
    with pytest.raises(ValueError, match="unknown keys depth, width; the fields of Config are vocab_size"):
        Config.from_json({**SIZES, "width": 3, "depth": 4})
    with pytest.raises(ValueError, match=r"rotary_scaling: .*speed"):
        Config.from_json({**SIZES, "rotary_scaling": {"speed": 3}})
