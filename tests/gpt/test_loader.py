"""Loading: errors name what is missing, surplus, of another shape or unsafe."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.gpt import GPT, Config
from regard.gpt.files import loader
from regard.gpt.tokens import bpe_tokenizer, character_tokenizer
from regard.support.files import ModelFileError
from tests.gpt.transformers_files import shard, write_llama, write_settings


@pytest.fixture
def folder(tmp_path):
    """A tiny Llama with the names of Transformers."""
    write_llama(tmp_path)
    return tmp_path


def change_tensors(folder, add=None, drop=""):
    kept = {name: x for name, x in load_file(folder / "model.safetensors").items() if name != drop}
    save_file(kept | (add or {}), folder / "model.safetensors")


def refused(name):
    with pytest.raises(ValueError) as caught:
        GPT.from_pretrained(name)
    return str(caught.value)


def test_every_row_is_where_it_belongs(folder):
    model, stored = GPT.from_pretrained(folder), load_file(folder / "model.safetensors")
    block = model.blocks[0]
    parts = [stored[f"model.layers.0.self_attn.{x}_proj.weight"] for x in "qkv"]
    assert torch.equal(block.attention.qkv.weight, torch.cat(parts))
    gate, up = (stored[f"model.layers.0.mlp.{x}_proj.weight"] for x in ("gate", "up"))
    assert torch.equal(block.feed_forward.up.weight, torch.cat([gate, up]))
    assert model(torch.tensor([[1, 2, 3]])).shape == (1, 3, 11)


WRONG_TENSORS = [
    ({}, "model.norm.weight", "1 missing (model.norm.weight)"),
    ({"model.layers.1.mlp.up_proj.weight": torch.zeros(1)}, "", "(model.layers.1.mlp.up_proj.weight)"),
    (
        {"model.layers.0.self_attn.q_proj.bias": torch.zeros(8)},
        "",
        "1 with no place in the model (model.layers.0.self_attn.q_proj.bias)",
    ),
    (
        {"model.layers.0.self_attn.k_proj.weight": torch.zeros(8, 8)},
        "",
        "q_proj.weight + model.layers.0.self_attn.k_proj.weight + model.layers.0.self_attn.v_proj.weight: "
        "expected (16, 8) for blocks.0.attention.qkv.weight, got (8, 8) + (8, 8) + (4, 8)",
    ),
    (
        {"model.norm.weight": torch.tensor(1.0)},
        "",
        "model.norm.weight: expected (8,) for norm.weight, got ()",
    ),
    (
        {"model.norm.weight": torch.zeros(8, dtype=torch.int8)},
        "",
        "model.norm.weight: expected float weights, got torch.int8",
    ),
]


@pytest.mark.parametrize(("add", "drop", "message"), WRONG_TENSORS)
def test_tensors_that_do_not_fit_are_named(folder, add, drop, message):
    change_tensors(folder, add, drop)
    assert message in refused(folder)
    assert str(folder) in refused(folder)


def test_angles_and_masks_of_old_files_are_passed_over(folder):
    change_tensors(folder, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2)})
    GPT.from_pretrained(folder)


def test_headless_names(folder):
    stored = load_file(folder / "model.safetensors")
    expected = GPT.from_pretrained(folder)(torch.tensor([[1, 2]]))
    bare = {name.removeprefix("model."): x for name, x in stored.items()}
    save_file(bare, folder / "model.safetensors")
    assert torch.equal(GPT.from_pretrained(folder)(torch.tensor([[1, 2]])), expected)


def test_an_untied_head_that_is_not_in_the_file(folder):
    write_settings(folder, tie_word_embeddings=False)
    assert "1 missing (lm_head.weight)" in refused(folder)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.pt", "weights.pth"])
def test_a_pickle_is_never_opened(folder, file):
    (folder / "model.safetensors").unlink()
    # Opening this as a pickle would end the test run.
    (folder / file).write_bytes(b"cos\n_exit\n(I7\ntR.")
    for name in (folder, folder / file):
        message = refused(name)
        assert f"{file} is a pickle, which can run any code" in message
        assert f"M.from_pretrained('{folder}').save_pretrained('{folder}-safetensors')" in message


def test_rotary_settings_of_older_files(folder):
    """Before version 5 Transformers wrote the base beside the scaling, whose kind was `type` at first."""
    scaling = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8,
    }
    write_settings(folder, rope_parameters={"rope_type": "llama3", "rope_theta": 500.0, **scaling})
    config = GPT.from_pretrained(folder).config
    assert config.rotary_base == 500.0
    assert config.rotary_scaling == (8.0, 1.0, 4.0, 8)
    for kind in ("rope_type", "type"):
        write_settings(folder, rope_theta=500.0, rope_scaling={kind: "llama3", **scaling})
        assert GPT.from_pretrained(folder).config == config
    write_settings(folder, rope_theta=500.0, rope_scaling=None)
    assert GPT.from_pretrained(folder).config.rotary_scaling is None


def test_broken_files(folder, tmp_path):
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-10])
    assert "model.safetensors is not a complete safetensors file" in refused(folder)
    (folder / "model.safetensors").unlink()
    assert "expected model.safetensors, or several files with model.safetensors.index.json" in refused(folder)
    (folder / "config.json").write_text("{")
    assert "config.json: expected JSON" in refused(folder)
    (folder / "config.json").write_text("[]")
    assert "config.json: expected a JSON object, got []" in refused(folder)
    (folder / "config.json").unlink()
    assert "expected a config.json" in refused(folder)


def test_shards(folder):
    expected = GPT.from_pretrained(folder)(torch.tensor([[1, 2]]))
    shard(folder)
    assert torch.equal(GPT.from_pretrained(folder)(torch.tensor([[1, 2]])), expected)
    (folder / "model.safetensors").touch()  # which is not read where there is an index
    assert torch.equal(GPT.from_pretrained(folder)(torch.tensor([[1, 2]])), expected)


def test_an_index_with_a_tensor_that_its_files_lack(folder):
    shard(folder, **{"model.extra": "model-00001-of-00002.safetensors"})
    assert "names tensors that its files lack: model.extra" in refused(folder)


def test_names_that_lead_nowhere(tmp_path, monkeypatch):
    (tmp_path / "notes.txt").touch()
    assert "expected a .gguf file, or the folder of the weights" in refused(tmp_path / "notes.txt")
    for name in (tmp_path / "nothing", "./nothing", "a/b/c", "nothing.gguf"):
        assert "and it is none of these" in refused(name)
    monkeypatch.setattr(loader, "INCLUDED_MODEL", tmp_path)
    assert "expected the model of the package" in refused("default")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    assert "download it with `regard data smollm2`" in refused("smollm2")


def test_a_hub_name(folder, monkeypatch):
    downloaded = []

    def snapshot_download(name, **options):
        downloaded.append((name, options["allow_patterns"]))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    GPT.from_pretrained("someone/small-llama")
    GPT.from_pretrained(folder)  # a folder needs no network
    assert downloaded == [("someone/small-llama", ["*.json", "*.safetensors"])]  # never a pickle


def test_a_hub_name_without_a_network(monkeypatch):
    def snapshot_download(name, **_):
        raise ConnectionError("no route to host\nand much more")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    message = refused("someone/small-llama")
    assert "could not be downloaded from the hub (ConnectionError: no route to host)" in message
    assert "without a network, give a folder" in message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 1_000_000}, r"num_hidden_layers: expected at most \d+ layers.*got 1000000"),
        ({"num_hidden_layers": -1}, "num_hidden_layers: expected a whole number of at least 1, got -1"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers: expected a whole number of at least 1, got '2'"),
        ({"hidden_size": 2**40}, "expected .*1099511627776"),
        ({"intermediate_size": 2**62}, "expected .*got"),
        (
            {"num_attention_heads": [2]},
            r"num_attention_heads: expected a whole number of at least 1, got \[2\]",
        ),
        ({"rms_norm_eps": "small"}, "rms_norm_eps: expected a number above 0, got 'small'"),
        ({"rope_theta": -1}, "rope_theta: expected a number above 0, got -1"),
        ({"rope_scaling": "llama3"}, "rope_scaling: expected an object, got 'llama3'"),
        ({"attention_bias": "no"}, "attention_bias: expected true or false, got 'no'"),
        ({"model_type": ["llama"]}, r"model_type: expected one of .*got \['llama'\]"),
        ({"model_type": "qwen2", "layer_types": [1]}, "layer_types: expected text, got 1"),
        ({"model_type": "mistral", "sliding_window": "4"}, "sliding_window: expected a whole number"),
        ({"model_type": "bloom"}, "expected one of gpt2, llama, mistral, qwen2, qwen3, got 'bloom'"),
        ({"hidden_act": "gelu"}, "hidden_act: expected 'silu', the only value supported, got 'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type: expected default or llama3"),
        ({"rope_scaling": {"rope_type": "llama3"}}, r"config\.json: expected a value for factor, got none"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor: expected 1\.0"),
        ({"quantization_config": {"bits": 4}}, "expected weights that are not quantised"),
        ({"num_attention_heads": 3}, "num_heads: expected a divisor of d_model=8, got 3"),
        ({"vocab_size": None}, r"config\.json: expected a value for vocab_size, got none"),
    ],
)
def test_settings_that_cannot_be(folder, changes, message, monkeypatch):
    """They are refused from the headers alone: no weight gets memory."""

    register = torch.nn.Module.register_parameter

    def register_meta(module, name, weight):
        assert weight is None or weight.is_meta, "a weight has memory"
        register(module, name, weight)

    monkeypatch.setattr(torch.nn.Module, "register_parameter", register_meta)
    write_settings(folder, **changes)
    with pytest.raises(ModelFileError, match=message) as caught:
        GPT.from_pretrained(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 1_000_000}, "num_layers: expected at most .* layers"),
        ({"d_model": 2**50, "head_dim": 2}, "expected .*1125899906842624"),
        ({"context_length": 2**50}, "position_embedding.weight: expected"),
        ({"rotary_scaling": {"factor": "x"}}, "rotary_scaling.factor: expected a number above 0, got 'x'"),
        ({"rotary_scaling": 5}, "rotary_scaling: expected a Llama3Scaling or None, got 5"),
        ({"eos_token_id": 1}, "eos_token_id: expected a tuple of tokens, got 1"),
        ({"dropout": "0"}, "dropout: expected a probability from 0 to below 1, got '0'"),
        ({"window": [[1], 2]}, "window: expected a whole number"),
    ],
)
def test_a_config_of_ours_that_cannot_be(tmp_path, changes, message):
    GPT(Config(vocab_size=8, context_length=4, num_layers=2, num_heads=1, d_model=2)).save(tmp_path / "ours")
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    (tmp_path / "ours" / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ModelFileError, match=message):
        GPT.from_pretrained(tmp_path / "ours")


@pytest.mark.parametrize("name", ["..", "../elsewhere.safetensors", "x\0.safetensors", 5, "config.json"])
def test_an_index_names_safetensors_files_of_its_folder(folder, name):
    shard(folder, **{"model.norm.weight": name})
    with pytest.raises(ModelFileError, match=r"index\.json"):
        GPT.from_pretrained(folder)


def test_a_tensor_in_two_files_is_refused(folder):
    shard(folder)
    first, second = sorted(folder.glob("model-*.safetensors"))
    save_file(load_file(first) | load_file(second), second)
    with pytest.raises(ModelFileError, match="expected it in one file, got two"):
        GPT.from_pretrained(folder)


def test_padding_and_truncation_of_a_tokenizer_are_left_out(folder):
    """A file that pads to 10^12 tokens would take all memory, and one that truncates hides text."""
    tokenizer = character_tokenizer("abc")
    tokenizer.enable_padding(length=10**12)
    tokenizer.enable_truncation(2)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert GPT.from_pretrained(folder).tokenizer.encode("abcabc").ids == [0, 1, 2, 0, 1, 2]


def test_a_panic_in_a_tokenizer_is_a_sentence(folder, monkeypatch):
    """A panic of Rust is a BaseException, which `except Exception` does not catch."""

    class Panicking:
        @staticmethod
        def from_str(text):
            raise BaseException("called `Option::unwrap()` on a `None` value")

    character_tokenizer("abc").save(str(folder / "tokenizer.json"))
    monkeypatch.setattr("tokenizers.Tokenizer", Panicking)
    with pytest.raises(ModelFileError, match=r"tokenizer\.json is not a tokenizer that can be read: called"):
        GPT.from_pretrained(folder)


def test_a_tokenizer_that_fails_on_use_is_refused_when_it_is_read(folder):
    """Its template names a special token that it does not describe, which `tokenizers` notices by a panic."""
    bpe_tokenizer(["abc"], 260).save(str(folder / "tokenizer.json"))
    described = json.loads((folder / "tokenizer.json").read_text())
    described["post_processor"]["special_tokens"] = {}
    (folder / "tokenizer.json").write_text(json.dumps(described))
    with pytest.raises(ModelFileError, match=r"tokenizer\.json is not a tokenizer that can be read"):
        GPT.from_pretrained(folder)
