"""GGUF headers that anyone may have written: every count is bounded by the bytes that are there."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from regard.gpt import GPT
from regard.gpt.files.gguf_header import read_header
from regard.support.files import ModelFileError
from tests.attack.files import encode_gguf, gguf_parts

pytest.importorskip("gguf")

FIELDS, TENSORS = gguf_parts()
BLOCKS = {0: (1, 4), 1: (1, 2), 8: (32, 34)}


def changed(name: str, kind: int, value: Any) -> bytes:
    """The small file with one field replaced or added."""
    fields = [field for field in FIELDS if field[0] != name]
    return encode_gguf([*fields, (name, kind, value)], TENSORS)


def with_tensor(**changes: Any) -> bytes:
    """The small file with its last tensor changed."""
    *others, last = TENSORS
    entry = dict(zip(("name", "shape", "kind", "offset"), last, strict=True)) | changes
    return encode_gguf(FIELDS, [*others, tuple(entry.values())])


def test_a_header_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(encode_gguf(FIELDS, TENSORS))
    header = read_header(tmp_path / "a.gguf", BLOCKS)
    assert header.fields["llama.block_count"] == 2
    assert header.fields["tokenizer.ggml.tokens"][:2] == ["a", "b"]
    assert header.tensors[0].shape == (10, 8)
    assert header.tensors[0].start % 32 == 0
    GPT.from_pretrained(tmp_path / "a.gguf")


TINY = struct.pack("<4sIQQQ3sIIQ", b"GGUF", 3, 0, 1, 3, b"key", 9, 4, 1 << 40)  # an array of 2^40 numbers


WRONG: list[tuple[bytes, str]] = [
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


def test_what_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    for data, says in WRONG:
        (tmp_path / "a.gguf").write_bytes(data)
        with pytest.raises(ModelFileError, match=says) as caught:
            GPT.from_pretrained(tmp_path / "a.gguf")
        assert "a.gguf" in str(caught.value)
