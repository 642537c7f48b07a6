"""Reads a GGUF file into a `StoredModel` with the names of Transformers: settings, tensors, tokenizer.

GGUF is the format of llama.cpp: one file, often with quantised matrices. `gguf_header` reads its header, and
the package `gguf` dequantises; this file knows its names, and that Llama's query and key rows are stored with
the two halves of each rotary pair interleaved.
"""

from __future__ import annotations

import re
import tomllib
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from regard.gpt.files.folder import StoredModel, StoredTensor
from regard.gpt.files.gguf_header import GGUFTensor, map_bytes, read_header
from regard.support.files import ModelFileError, check_type, converting_errors, naming_errors, shorten
from regard.support.imports import extra

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_NAMES = tomllib.loads(Path(__file__).with_name("gguf_names.toml").read_text(encoding="utf-8"))
TENSORS: dict[str, str] = _NAMES["tensors"]
SETTINGS: dict[str, list[str]] = _NAMES["settings"]
TYPES: dict[str, type[int | float]] = {"int": int, "float": float}
SPLITS = {  # the pattern that splits text before the merges, by the name in the file
    "gpt-2": None,
    # llama.cpp splits SmolLM's digits one by one, before the pattern of GPT-2.
    "smollm": r"\p{N}",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


def read(path: Path) -> StoredModel:
    """Read a GGUF file of Llama, Qwen2 or Qwen3; a `ModelFileError` says what it is otherwise."""
    with extra("gguf", "a GGUF file"):
        from gguf import GGML_QUANT_SIZES
    header = read_header(path, {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()})
    with naming_errors(path, ModelFileError):
        kind = header.fields.get("general.architecture")
        if not isinstance(kind, str) or kind not in ("llama", "qwen2", "qwen3"):
            raise ValueError(f"general.architecture: expected llama, qwen2 or qwen3, got {shorten(kind)}")
        tensors = {_transformers_name(tensor.name): tensor for tensor in header.tensors}
        # A file may name a tensor as llama.cpp does and another as Transformers does: one would hide the
        # other.
        if len(tensors) != len(header.tensors):
            raise ValueError("tensors: expected the names of llama.cpp, got some of Transformers as well")
        settings, names = _settings(kind, header.fields, tensors)
        tokenizer = _tokenizer(path, header.fields)

    # Tensors, read on demand; only Llama's queries and keys are interleaved.
    heads = {
        "q_proj": settings.get("num_attention_heads"),
        # GGUF leaves head_count_kv out of models without grouped heads.
        "k_proj": settings.get("num_key_value_heads") or settings.get("num_attention_heads"),
    }
    stored = {}
    for name, tensor in tensors.items():
        interleaved = next((n for part, n in heads.items() if f".{part}." in name and kind == "llama"), None)
        stored[name] = StoredTensor(tensor.shape, partial(_dequantize, path, tensor, interleaved))
    return StoredModel(path, settings, stored, tokenizer, names)


def _settings(
    kind: str, fields: dict[str, Any], tensors: dict[str, GGUFTensor]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings by their names in Transformers, and the names that the file has for them."""
    settings: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, (theirs, number) in SETTINGS.items():
        if (field := f"{kind}.{name}") in fields:
            settings[theirs] = check_type(field, fields[field], TYPES[number])
        names[theirs] = field
    # The size of the vocabulary is an optional field of GGUF, so that the embedding tells it.
    if "model.embed_tokens.weight" not in tensors:
        raise ValueError("token_embd.weight: expected the embedding of the tokens, got no such tensor")
    settings |= {
        "model_type": kind,
        "vocab_size": tensors["model.embed_tokens.weight"].shape[0],
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
    }
    # As in llama.cpp, a factor without a type is linear; older files call it scale_linear.
    factors = (fields.get(f"{kind}.rope.{name}", 1) for name in ("scaling.factor", "scale_linear"))
    default = "linear" if any(factor not in (0, 1) for factor in factors) else "none"
    if (scaling := fields.get(f"{kind}.rope.scaling.type", default)) != "none":
        # A type that is not known must not be ignored: the angles of every position would be wrong.
        settings["rope_scaling"] = {"rope_type": scaling}  # `families` refuses it by name
    return settings, names


def _transformers_name(name: str) -> str:
    """`model.layers.3.self_attn.q_proj.weight` for `blk.3.attn_q.weight`; an unknown name is kept."""
    # ASCII, since \d and \w also match digits and letters of other scripts.
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name, re.ASCII)
    if match is None or match[2] not in TENSORS:
        return name
    layer = f"model.layers.{match[1]}." if match[1] else ""
    return f"{layer}{TENSORS[match[2]]}.{match[3]}"


def _dequantize(path: Path, tensor: GGUFTensor, heads: int | None) -> Tensor:
    """The values of a tensor; with `heads`, the rows of each head de-interleaved into two halves."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    with converting_errors(path, ModelFileError, f"a GGUF file whose {shorten(tensor.name)} can be read"):
        with np.errstate(invalid="ignore"):  # NaN stays NaN; some processors warn of it
            data = dequantize(map_bytes(path, tensor), GGMLQuantizationType(tensor.type))
        # copy: the array may be a view of the file, which is read-only.
        values = torch.from_numpy(data.copy())
        if heads is None:
            return values
        # convert_hf_to_gguf permutes Llama's rows to (D/2, 2) for each head; Transformers has the two halves
        # apart.
        return values.view(heads, -1, 2, *values.shape[1:]).transpose(1, 2).reshape(values.shape)


def _tokenizer(path: Path, fields: dict[str, Any]) -> Tokenizer | None:
    """The byte-level BPE in the file; None, with a warning, if the tokenizer is of another kind."""
    with extra("app", "a tokenizer"):
        from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    model, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "gpt-2")
    if model is None:
        return None
    if model != "gpt2" or not isinstance(pre, str) or pre not in SPLITS:
        warnings.warn(
            f"no tokenizer: expected gpt2 with {', '.join(SPLITS)}, got {shorten(model)} {shorten(pre)}",
            stacklevel=5,
        )
        return None
    tokens = _texts(fields, "tokenizer.ggml.tokens")
    merges: Any = [tuple(pair.split(" ", 1)) for pair in _texts(fields, "tokenizer.ggml.merges")]
    types = check_type("tokenizer.ggml.token_type", fields.get("tokenizer.ggml.token_type", []), list)
    with converting_errors(path, ModelFileError, "a GGUF file with a vocabulary and its merges"):
        tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
        pattern = SPLITS[pre]
        # Qwen's pattern replaces GPT-2's; SmolLM's comes before it.
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre != "qwen2")
        if pattern is None:
            tokenizer.pre_tokenizer = byte_level
        else:
            split = pre_tokenizers.Split(Regex(pattern), "isolated")
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
        tokenizer.decoder = decoders.ByteLevel()
        # Type 3 is a control token, type 4 a user-defined one.
        # zip may be uneven: the list of types is optional in GGUF.
        special = [token for token, kind in zip(tokens, types, strict=False) if kind in (3, 4)]
        tokenizer.add_special_tokens([AddedToken(x, special=True, normalized=False) for x in special])
    return tokenizer


def _texts(fields: dict[str, Any], name: str) -> list[str]:
    values = check_type(name, fields.get(name), list)
    return [check_type(name, value, str) for value in values]
