"""Reads a GGUF file into a `StoredModel` with the names of Transformers: settings, tensors, tokenizer.

GGUF is the format of llama.cpp: one file, often with quantised matrices. The package `gguf` opens it and
dequantises; this file knows its names, and that Llama's query and key rows are stored with the two halves of
each rotary pair interleaved.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.escapes import escape
from regard.extras import extra
from regard.gpt.folder import StoredModel

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
SETTINGS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
SPLITS = {  # the pattern that splits text before the merges, by the name in the file
    "gpt-2": None,
    "smollm": r"\p{N}",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


def read(path: Path) -> StoredModel:
    """Read a GGUF file of Llama, Qwen2 or Qwen3; a ValueError says what it is otherwise."""
    with extra("gguf", "a GGUF file"):
        from gguf import GGUFReader
    try:
        reader = GGUFReader(path)
    except (ValueError, OSError, IndexError) as error:
        raise ValueError(f"{path} is not a complete GGUF file: {error}") from None
    fields = {name: field.contents() for name, field in reader.fields.items()}
    kind = fields.get("general.architecture")
    if kind not in ("llama", "qwen2", "qwen3"):
        raise ValueError(f"{path}: general.architecture: expected llama, qwen2 or qwen3, got {kind!r}")
    tensors = {_transformers_name(tensor.name): tensor for tensor in reader.tensors}

    # Settings, by the names in a config.json of Transformers.
    settings = {
        theirs: fields[f"{kind}.{name}"] for name, theirs in SETTINGS.items() if f"{kind}.{name}" in fields
    }
    settings |= {
        "model_type": kind,
        "vocab_size": int(tensors["model.embed_tokens.weight"].shape[1]),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
    }
    if (scaling := fields.get(f"{kind}.rope.scaling.type", "none")) != "none":
        settings["rope_scaling"] = {"rope_type": scaling}  # `families` refuses it by name

    # Tensors, read on demand; only Llama's queries and keys are interleaved.
    heads = {
        "q_proj": settings.get("num_attention_heads"),
        "k_proj": settings.get("num_key_value_heads", settings.get("num_attention_heads")),
    }
    readers: dict[str, Callable[[], Tensor]] = {}
    for name, tensor in tensors.items():
        interleaved = next((n for part, n in heads.items() if f".{part}." in name and kind == "llama"), None)
        readers[name] = partial(_dequantize, tensor, interleaved)
    return StoredModel(path, settings, readers, _tokenizer(fields))


def _transformers_name(name: str) -> str:
    """`model.layers.3.self_attn.q_proj.weight` for `blk.3.attn_q.weight`; an unknown name is kept."""
    *block, part, kind = name.split(".")
    if part not in TENSORS:
        return name
    layer = f"model.layers.{block[1]}." if block else ""
    return f"{layer}{TENSORS[part]}.{kind}"


def _dequantize(tensor: Any, heads: int | None) -> Tensor:
    """The values of a tensor; with `heads`, the rows of each head de-interleaved into two halves."""
    from gguf.quants import dequantize

    values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
    if heads is None:
        return values
    return values.view(heads, -1, 2, *values.shape[1:]).transpose(1, 2).reshape(values.shape)


def _tokenizer(fields: dict[str, Any]) -> Tokenizer | None:
    """The byte-level BPE in the file; None, with a warning, if the tokenizer is of another kind."""
    with extra("app", "a tokenizer"):
        from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    model, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "gpt-2")
    if model is None:
        return None
    if model != "gpt2" or pre not in SPLITS:
        warnings.warn(
            escape(f"no tokenizer: expected gpt2 with {', '.join(SPLITS)}, got {model} {pre}"), stacklevel=4
        )
        return None
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ", 1)) for pair in fields["tokenizer.ggml.merges"]]
    try:
        tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    except Exception as error:  # `tokenizers` raises nothing narrower
        raise ValueError(f"tokenizer.ggml: expected a vocabulary and its merges: {error}") from None
    pattern = SPLITS[pre]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre != "qwen2")
    if pattern is None:
        tokenizer.pre_tokenizer = byte_level
    else:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    # Type 3 is a control token, type 4 a user-defined one.
    types = fields.get("tokenizer.ggml.token_type", [])
    special = [token for token, kind in zip(tokens, types, strict=False) if kind in (3, 4)]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer
