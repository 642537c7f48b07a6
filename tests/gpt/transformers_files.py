"""A tiny Llama on disk as Transformers writes one: its config, and its weights in one file or in two."""

import json

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


def llama_shapes(layers, width, kv, hidden, vocab):
    """The shapes of all tensors, by the names that Transformers has for them."""
    of_layer = {
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (kv, width),
        "self_attn.v_proj": (kv, width),
        "self_attn.o_proj": (width, width),
        "mlp.gate_proj": (hidden, width),
        "mlp.up_proj": (hidden, width),
        "mlp.down_proj": (width, hidden),
    }
    found = {f"model.layers.{i}.{name}.weight": x for i in range(layers) for name, x in of_layer.items()}
    return {"model.embed_tokens.weight": (vocab, width), "model.norm.weight": (width,)} | found


SHAPES = llama_shapes(1, 8, 4, 12, 11)
INDEX = "model.safetensors.index.json"


def write_llama(folder, **settings):
    """Write the model with random weights; returns the path of its config."""
    torch.manual_seed(0)
    folder.mkdir(exist_ok=True)
    save_file({name: torch.randn(shape) for name, shape in SHAPES.items()}, folder / "model.safetensors")
    return write_settings(folder, **settings)


def write_settings(folder, **changes):
    """Write the config with some settings changed, or without those that are None."""
    settings = {name: x for name, x in (LLAMA | changes).items() if x is not None}
    (folder / "config.json").write_text(json.dumps(settings))
    return folder / "config.json"


def shard(folder, **names):
    """Put the same weights into two files with an index, in which some names stand for other files."""
    stored = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    files = {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(stored)}
    for file in set(files.values()):
        save_file({name: x for name, x in stored.items() if files[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"weight_map": files | names}))
    return folder / INDEX
