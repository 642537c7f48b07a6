"""A tiny Llama on disk as Transformers writes one: its config, and its weights in one file or in two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

LLAMA = {
    "model_type": "llama",
    "vocab_size": 11,
    "max_position_embeddings": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "hidden_size": 8,
    "intermediate_size": 12,
    "tie_word_embeddings": True,
}
SHAPES = {
    "model.embed_tokens.weight": (11, 8),
    "model.norm.weight": (8,),
    "model.layers.0.input_layernorm.weight": (8,),
    "model.layers.0.post_attention_layernorm.weight": (8,),
    "model.layers.0.self_attn.q_proj.weight": (8, 8),
    "model.layers.0.self_attn.k_proj.weight": (4, 8),
    "model.layers.0.self_attn.v_proj.weight": (4, 8),
    "model.layers.0.self_attn.o_proj.weight": (8, 8),
    "model.layers.0.mlp.gate_proj.weight": (12, 8),
    "model.layers.0.mlp.up_proj.weight": (12, 8),
    "model.layers.0.mlp.down_proj.weight": (8, 12),
}
INDEX = "model.safetensors.index.json"


def write_llama(folder: Path, **settings: Any) -> Path:
    """Write the model with random weights; returns the path of its config."""
    torch.manual_seed(0)
    folder.mkdir(exist_ok=True)
    save_file({name: torch.randn(shape) for name, shape in SHAPES.items()}, folder / "model.safetensors")
    return write_settings(folder, **settings)


def write_settings(folder: Path, **changes: Any) -> Path:
    """Write the config with some settings changed, or without those that are None."""
    settings = {name: x for name, x in (LLAMA | changes).items() if x is not None}
    (folder / "config.json").write_text(json.dumps(settings))
    return folder / "config.json"


def shard(folder: Path, **names: Any) -> Path:
    """Put the same weights into two files with an index, in which some names stand for other files."""
    stored = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    files = {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(stored)}
    for file in set(files.values()):
        save_file({name: x for name, x in stored.items() if files[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"weight_map": files | names}))
    return folder / INDEX
