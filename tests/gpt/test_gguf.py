"""GGUF: the same model from a folder and from a file; quantised blocks; tokenizers; hostile headers."""

import json
import struct
import sys

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from regard.cli import app
from regard.gpt import GPT
from regard.gpt.files.gguf_header import read_header
from regard.support.files import ModelFileError
from regard.support.imports import MissingExtraError
from tests.attack.files import encode_gguf, gguf_parts
from tests.gpt.transformers_files import llama_shapes

gguf = pytest.importorskip("gguf")

HEADS, KV_HEADS, WIDTH, HIDDEN, LAYERS, VOCAB = 4, 2, 64, 96, 2, 40
SETTINGS = {
    "vocab_size": VOCAB,
    "max_position_embeddings": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "hidden_size": WIDTH,
    "intermediate_size": HIDDEN,
    "head_dim": WIDTH // HEADS,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
}
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOKENS = ["<s>", "<|end|>", *"abcdefghij0123456789Ġ!.", "ab", "abc", "Ġa", "Ã", "©", "Ã©", "42"]


def tensors(kind, tied):
    """Random weights by the names that Transformers has for them."""
    half = KV_HEADS * WIDTH // HEADS
    named = llama_shapes(LAYERS, WIDTH, half, HIDDEN, VOCAB)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}.self_attn."
        if kind == "qwen2":
            named |= {f"{at}{x}_proj.bias": (n,) for x, n in (("q", WIDTH), ("k", half), ("v", half))}
        if kind == "qwen3":
            named |= {f"{at}{x}_norm.weight": (WIDTH // HEADS,) for x in "qk"}
    if not tied:
        named["lm_head.weight"] = (VOCAB, WIDTH)
    torch.manual_seed(0)
    return {name: torch.randn(shape) * 0.3 + ("norm" in name) for name, shape in named.items()}


def paired(weight, heads):
    """The rows of every head with each rotary pair side by side, as llama.cpp has them."""
    return torch.stack([row for head in weight.chunk(heads) for row in pairs(head)])


def pairs(head):
    first, second = head.chunk(2)
    return [row for pair in zip(first, second, strict=True) for row in pair]


def write_gguf(path, kind, weights, *, quantised=False, tokens=None, pre="gpt-2", **extra):
    writer = gguf.GGUFWriter(path, kind)
    writer.add_block_count(LAYERS)
    writer.add_context_length(32)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(5000.0)
    for name, value in extra.items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        add(f"{kind}.{name.replace('_', '.')}", value)
    if tokens is not None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types([3, 3] + [1] * (len(tokens) - 2))
        writer.add_token_merges(["a b", "ab c", "Ġ a", "Ã ©", "4 2"])
        writer.add_eos_token_id(1)
    for name, x in weights.items():
        *where, last = name.removeprefix("model.").split(".")
        if where[0] == "layers":
            renamed = f"blk.{where[1]}.{NAMES['.'.join(where[2:])]}.{last}"
        else:
            renamed = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}[
                where[0]
            ] + ".weight"
        if kind == "llama" and (".q_proj" in name or ".k_proj" in name):
            x = paired(x, HEADS if ".q_proj" in name else KV_HEADS)
        if quantised and x.ndim == 2:
            kinds = gguf.GGMLQuantizationType
            writer.add_tensor(renamed, gguf.quants.quantize(x.numpy(), kinds.Q8_0), raw_dtype=kinds.Q8_0)
        else:
            writer.add_tensor(renamed, x.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_a_file_is_the_folder(kind, tied, tmp_path):
    weights = tensors(kind, tied)
    write_gguf(tmp_path / "model.gguf", kind, weights)
    save_file(weights, tmp_path / "model.safetensors")
    settings = SETTINGS | {"model_type": kind, "tie_word_embeddings": tied}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    file, folder = GPT.from_pretrained(tmp_path / "model.gguf"), GPT.from_pretrained(tmp_path)
    ids = torch.randint(0, VOCAB, (2, 20))
    assert torch.allclose(file(ids), folder(ids), rtol=1e-5, atol=1e-5)
    assert file.config.to_json() == {**folder.config.to_json(), "norm_eps": file.config.norm_eps}
    assert file.config.norm_eps == pytest.approx(1e-5)
    assert file.tokenizer is None


def test_quantised_blocks(tmp_path):
    weights = tensors("llama", True)
    write_gguf(tmp_path / "model.gguf", "llama", weights, quantised=True)
    state = GPT.from_pretrained(tmp_path / "model.gguf").state_dict()
    for name, x in (
        ("token_embedding.weight", weights["model.embed_tokens.weight"]),
        ("blocks.1.attention.out.weight", weights["model.layers.1.self_attn.o_proj.weight"]),
    ):
        # 8 bits a number: a block of 32 is off by half a step at most, whose size is rounded to 16 bits.
        error = (state[name] - x).view(-1, 32).abs().amax(-1)
        assert (error <= x.view(-1, 32).abs().amax(-1) / 127 * 0.57).all()
        assert error.max() > 0
    assert torch.equal(state["norm.weight"], weights["model.norm.weight"])


@pytest.mark.parametrize(
    ("pre", "digits"), [("gpt-2", ["42"]), ("smollm", ["4", "2"]), ("qwen2", ["4", "2"])]
)
def test_the_tokenizer_comes_along_and_splits_digits_where_the_file_says_so(pre, digits, tmp_path):
    write_gguf(tmp_path / "model.gguf", "llama", tensors("llama", True), tokens=TOKENS, pre=pre)
    model = GPT.from_pretrained(tmp_path / "model.gguf")
    assert model.config.eos_token_id == (1,)
    encoded = model.tokenizer.encode("abc a42é<|end|>.")
    assert encoded.tokens == ["abc", "Ġa", *digits, "Ã©", "<|end|>", "."]
    assert model.tokenizer.decode(encoded.ids) == "abc a42é."
    assert model.generate("abc a", max_new_tokens=4).startswith("abc a")


def test_a_tokenizer_of_another_kind_is_left_out_with_a_warning(tmp_path):
    write_gguf(tmp_path / "model.gguf", "llama", tensors("llama", True), tokens=TOKENS, pre="unheard-of")
    with pytest.warns(UserWarning, match="no tokenizer: expected gpt2 .* got .gpt2. .unheard-of."):
        assert GPT.from_pretrained(tmp_path / "model.gguf").tokenizer is None


@pytest.mark.parametrize(
    ("kind", "extra", "message"),
    [
        ("mamba", {}, "general.architecture: expected llama, qwen2 or qwen3, got 'mamba'"),
        ("llama", {"rope_scaling_type": "yarn"}, "rope_type: expected default or llama3, got 'yarn'"),
        ("llama", {"rope_scaling_factor": 4.0}, "rope_type: expected default or llama3, got 'linear'"),
    ],
)
def test_files_of_other_models(kind, extra, message, tmp_path):
    write_gguf(tmp_path / "model.gguf", kind, tensors("llama", True), **extra)
    with pytest.raises(ValueError) as caught:
        GPT.from_pretrained(tmp_path / "model.gguf")
    assert message in str(caught.value)


def test_tensors_are_accounted_for(tmp_path):
    weights = tensors("llama", True)
    del weights["model.layers.1.mlp.up_proj.weight"]
    weights["model.layers.0.self_attn.q_norm.weight"] = torch.ones(4)
    write_gguf(tmp_path / "model.gguf", "llama", weights)
    with pytest.raises(ValueError) as caught:
        GPT.from_pretrained(tmp_path / "model.gguf")
    assert "1 missing (model.layers.1.mlp.up_proj.weight)" in str(caught.value)
    assert "1 with no place in the model (model.layers.0.self_attn.q_norm.weight)" in str(caught.value)


def test_without_the_package(tmp_path, monkeypatch):
    (tmp_path / "model.gguf").touch()
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtraError, match=r'pip install "regard\[gguf\]"'):
        GPT.from_pretrained(tmp_path / "model.gguf")


def test_the_command_streams_a_model_from_a_file(tmp_path):
    path = tmp_path / "model.gguf"
    write_gguf(
        path, "llama", tensors("llama", True), tokens=TOKENS + [f"x{i}" for i in range(VOCAB - len(TOKENS))]
    )
    model = GPT.from_pretrained(path)
    expected = model.generate("abc", max_new_tokens=6, stop=list(model.config.eos_token_id))
    run = CliRunner().invoke
    command = ["generate", "--model", str(path), "abc", "--tokens", "6", "--temperature", "0"]
    result = run(app, command)
    assert (result.exit_code, result.output) == (0, expected + "\n")
    outputs = [run(app, [*command, "--temperature", "3", "--seed", seed]).output for seed in "112"]
    assert outputs[0] == outputs[1] != outputs[2]
    error = run(app, [*command, "--top-p", "2"]).exception
    assert isinstance(error, ValueError)
    assert "top_p" in str(error)


pytest.importorskip("gguf")

FIELDS, TENSORS = gguf_parts()
BLOCKS = {0: (1, 4), 1: (1, 2), 8: (32, 34)}


def changed(name, kind, value):
    """The small file with one field replaced or added."""
    fields = [field for field in FIELDS if field[0] != name]
    return encode_gguf([*fields, (name, kind, value)], TENSORS)


def with_tensor(**changes):
    """The small file with its last tensor changed."""
    *others, last = TENSORS
    entry = dict(zip(("name", "shape", "kind", "offset"), last, strict=True)) | changes
    return encode_gguf(FIELDS, [*others, tuple(entry.values())])


def test_a_header_is_read(tmp_path):
    (tmp_path / "a.gguf").write_bytes(encode_gguf(FIELDS, TENSORS))
    header = read_header(tmp_path / "a.gguf", BLOCKS)
    assert header.fields["llama.block_count"] == 2
    assert header.fields["tokenizer.ggml.tokens"][:2] == ["a", "b"]
    assert header.tensors[0].shape == (10, 8)
    assert header.tensors[0].start % 32 == 0
    GPT.from_pretrained(tmp_path / "a.gguf")


TINY = struct.pack("<4sIQQQ3sIIQ", b"GGUF", 3, 0, 1, 3, b"key", 9, 4, 1 << 40)  # an array of 2^40 numbers


WRONG = [
    (b"", "empty"),
    (b"GGU", "magic: expected 4 bytes from byte 0 on, but the file ends after 3"),
    (b"GGML" + bytes(40), r"magic: expected b'GGUF', got b'GGML'"),
    (b"GGUF" + struct.pack(">I", 3) + bytes(40), "big-endian"),
    (TINY, "length of 'key': expected at most 0, since 0 bytes are left, got 1,099,511,627,776"),
    (TINY[:-8] + struct.pack("<Q", (1 << 64) - 1), "length of 'key': expected at most 0"),
    (encode_gguf(FIELDS, TENSORS, (1 << 40, 3)), "tensor_count: expected at most"),
    (encode_gguf(FIELDS, TENSORS, (3, 1 << 60)), "metadata_kv_count: expected at most"),
    (changed("x", 9, (8, ["a"], 1 << 40)), "length of 'x': expected at most"),
    (changed("x", 9, (9, [(9, [(9, [(9, [(9, [], 0)], 1)], 1)], 1)], 1)), "arrays at most 4 deep"),
    (changed("x", 9, (13, [], 0)), "'x': expected an array of a type from 0 to 12, got 13"),
    (encode_gguf([*FIELDS, FIELDS[0]], TENSORS), "'general.architecture': expected each field once"),
    (changed("general.alignment", 4, 0), "general.alignment: expected a multiple of 8, got 0"),
    (changed("general.alignment", 8, "32"), "general.alignment: expected a multiple of 8, got '32'"),
    (changed("llama.block_count", 4, 1_000_000), "llama.block_count: expected at most 20 layers"),
    (changed("llama.block_count", 8, "2"), "llama.block_count: expected a whole number, got '2'"),
    (changed("llama.embedding_length", 4, 1 << 28), r"expected \(10, 268435456\)"),
    (changed("llama.embedding_length", 4, 1 << 31), "config: expected sizes that tensors can have, got"),
    (changed("llama.attention.head_count", 4, 0), "num_attention_heads: expected a whole number"),
    (changed("tokenizer.ggml.tokens", 4, 1), "tokenizer.ggml.tokens: expected a list, got 1"),
    (changed("tokenizer.ggml.merges", 9, (8, ["ab"], 1)), "a vocabulary and its merges"),
    (with_tensor(shape=(1 << 40, 1 << 40)), "within the .* of the file, got"),
    (with_tensor(shape=(0,)), r"sizes of at least 1, .* got \(0,\)"),
    (with_tensor(shape=(1,) * 5), "expected from 1 to 4 dimensions, got 5"),
    (with_tensor(kind=99), "expected a tensor of a type of GGUF, .* of type 99"),
    (with_tensor(offset=1 << 40), "within the .* of the file, got .* after the header"),
    (with_tensor(offset=0), "expected bytes of its own"),
    (with_tensor(offset=33), "at a multiple of 32 bytes"),
    (with_tensor(name="token_embd.weight"), "tensors: expected each name once"),
    (with_tensor(name="model.embed_tokens.weight"), "expected the names of llama.cpp"),
]


def test_what_cannot_be_is_refused_by_name(tmp_path):
    for data, says in WRONG:
        (tmp_path / "a.gguf").write_bytes(data)
        with pytest.raises(ModelFileError, match=says) as caught:
            GPT.from_pretrained(tmp_path / "a.gguf")
        assert "a.gguf" in str(caught.value)
