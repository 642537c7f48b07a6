"""The model families that can be loaded: how to read their `config.json`, and where each tensor goes.

A `Family` is two functions: from the settings of Transformers to a `Config`, and from a `Config` to a table
of the stored tensors that make up each parameter of `GPT`. This file knows names and conventions; it reads no
files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from regard.gpt.config import Activation, Config
from regard.layers import Llama3Scaling

Settings = Mapping[str, Any]
"""The contents of a `config.json` of Transformers."""


class WeightPart(NamedTuple):
    """The stored tensors that make up one parameter, concatenated along their rows."""

    names: tuple[str, ...]
    transposed: bool = False
    """Whether the file stores the transpose."""


class Family(NamedTuple):
    """A family of models in Transformers."""

    config: Callable[[Settings], Config]
    parts: Callable[[Config], dict[str, WeightPart]]
    """The stored tensors of each parameter of `GPT`, by name and without `prefix`."""
    prefix: str = ""
    """Precedes the names in `parts`, except in files that were saved without a language-model head."""
    derived: str = r"(?!)"
    """A pattern for tensors of old files that are not parameters, such as causal masks and rotary angles."""


def find_family(settings: Settings) -> Family:
    """The family that the `model_type` of a `config.json` names; a ValueError lists those supported."""
    name = settings.get("model_type")
    if name not in FAMILIES:
        raise ValueError(f"model_type: expected one of {', '.join(sorted(FAMILIES))}, got {name!r}")
    if "quantization_config" in settings:
        raise ValueError(
            "quantization_config: expected weights that are not quantised; "
            "of quantised models only GGUF files can be loaded"
        )
    return FAMILIES[name]


def _gpt2(settings: Settings) -> Config:
    for name, value in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False)):
        _require(settings, name, value)
    activations: dict[str, Activation] = {
        "gelu_new": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "gelu": "gelu",
    }
    activation = settings.get("activation_function", "gelu_new")
    if activation not in activations:
        raise ValueError(f"activation_function: expected one of {', '.join(activations)}, got {activation!r}")
    vocab_size = _get(settings, "vocab_size")
    return Config(
        vocab_size=vocab_size,
        context_length=_get(settings, "n_positions"),
        num_layers=_get(settings, "n_layer"),
        num_heads=_get(settings, "n_head"),
        d_model=_get(settings, "n_embd"),
        intermediate_size=settings.get("n_inner") or 4 * _get(settings, "n_embd"),
        norm_eps=settings.get("layer_norm_epsilon", 1e-5),
        activation=activations[activation],
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        tie_word_embeddings=settings.get("tie_word_embeddings", True),
        eos_token_id=_eos_token_id(settings, vocab_size),
    )


def _gpt2_parts(config: Config) -> dict[str, WeightPart]:
    parts = {
        "token_embedding.weight": WeightPart(("wte.weight",)),
        "position_embedding.weight": WeightPart(("wpe.weight",)),
        "norm.weight": WeightPart(("ln_f.weight",)),
        "norm.bias": WeightPart(("ln_f.bias",)),
    }
    modules = {
        "attention_norm": "ln_1",
        "attention.qkv": "attn.c_attn",
        "attention.out": "attn.c_proj",
        "feed_forward_norm": "ln_2",
        "feed_forward.up": "mlp.c_fc",
        "feed_forward.down": "mlp.c_proj",
    }
    for layer in range(config.num_layers):
        for ours, theirs in modules.items():
            # GPT-2 stores its matrices as (inputs, outputs), the transpose of nn.Linear's.
            transposed = "norm" not in ours
            parts[f"blocks.{layer}.{ours}.weight"] = WeightPart((f"h.{layer}.{theirs}.weight",), transposed)
            parts[f"blocks.{layer}.{ours}.bias"] = WeightPart((f"h.{layer}.{theirs}.bias",))
    return parts


def _llama(settings: Settings) -> Config:
    biased = settings.get("attention_bias", False)
    return _llama_like(settings, qkv_bias=biased, out_bias=biased, mlp_bias=settings.get("mlp_bias", False))


def _mistral(settings: Settings) -> Config:
    return _llama_like(settings, window=settings.get("sliding_window", 4096))


def _qwen2(settings: Settings) -> Config:
    return _llama_like(settings, qkv_bias=True, window=_qwen_windows(settings))


def _qwen3(settings: Settings) -> Config:
    biased = settings.get("attention_bias", False)
    return _llama_like(
        {"head_dim": 128, **settings},
        qkv_bias=biased,
        out_bias=biased,
        qk_norm=True,
        window=_qwen_windows(settings),
    )


def _llama_like(settings: Settings, **choices: Any) -> Config:
    """A Llama with the given `choices`, which are fields of `Config`."""
    _require(settings, "hidden_act", "silu")
    _require(settings, "partial_rotary_factor", 1.0)
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    vocab_size = _get(settings, "vocab_size")
    return Config(
        vocab_size=vocab_size,
        context_length=_get(settings, "max_position_embeddings"),
        num_layers=_get(settings, "num_hidden_layers"),
        num_heads=_get(settings, "num_attention_heads"),
        d_model=_get(settings, "hidden_size"),
        num_kv_heads=settings.get("num_key_value_heads") or _get(settings, "num_attention_heads"),
        head_dim=settings.get("head_dim"),  # type: ignore[arg-type]  # None is Config's default
        intermediate_size=_get(settings, "intermediate_size"),
        norm="rms",
        norm_eps=settings.get("rms_norm_eps", 1e-6),
        positions="rotary",
        rotary_base=float(rope.get("rope_theta") or settings.get("rope_theta") or 10000.0),
        rotary_scaling=_rotary_scaling(rope),
        activation="swiglu",
        tie_word_embeddings=settings.get("tie_word_embeddings", False),
        eos_token_id=_eos_token_id(settings, vocab_size),
        **choices,
    )


def _llama_parts(config: Config) -> dict[str, WeightPart]:
    parts = {
        "token_embedding.weight": WeightPart(("embed_tokens.weight",)),
        "norm.weight": WeightPart(("norm.weight",)),
    }
    for layer in range(config.num_layers):
        ours, theirs = f"blocks.{layer}", f"layers.{layer}"
        joined = {
            "attention.qkv": [f"self_attn.{x}_proj" for x in "qkv"],
            "attention.out": ["self_attn.o_proj"],
            "feed_forward.up": ["mlp.gate_proj", "mlp.up_proj"],
            "feed_forward.down": ["mlp.down_proj"],
            "attention_norm": ["input_layernorm"],
            "feed_forward_norm": ["post_attention_layernorm"],
        }
        if config.qk_norm:
            joined |= {
                "attention.query_norm": ["self_attn.q_norm"],
                "attention.key_norm": ["self_attn.k_norm"],
            }
        biased = {
            "attention.qkv": config.qkv_bias,
            "attention.out": config.out_bias,
            "feed_forward.up": config.mlp_bias,
            "feed_forward.down": config.mlp_bias,
        }
        for name, sources in joined.items():
            for kind in ("weight", "bias") if biased.get(name) else ("weight",):
                parts[f"{ours}.{name}.{kind}"] = WeightPart(
                    tuple(f"{theirs}.{source}.{kind}" for source in sources)
                )
    return parts


def _qwen_windows(settings: Settings) -> tuple[int | None, ...] | None:
    """The windows of Qwen's layers: from `layer_types`, or in older files from `max_window_layers` on."""
    size = settings.get("sliding_window", 4096) if settings.get("use_sliding_window") else None
    layers = _get(settings, "num_hidden_layers")
    types = settings.get("layer_types")
    if types is None:
        first = settings.get("max_window_layers", 28)
        types = ["sliding_attention" if layer >= first else "full_attention" for layer in range(layers)]
    if unknown := set(types) - {"sliding_attention", "full_attention"}:
        raise ValueError(f"layer_types: expected sliding_attention or full_attention, got {sorted(unknown)}")
    return tuple(size if kind == "sliding_attention" else None for kind in types) if size else None


def _rotary_scaling(rope: Settings) -> Llama3Scaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ValueError(f"rope_type: expected default or llama3, got {kind!r}")
    fields = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    return Llama3Scaling(*(_get(rope, name) for name in fields))


def _eos_token_id(settings: Settings, vocab_size: int) -> tuple[int, ...]:
    """The tokens that end a text; those outside the vocabulary, which some files name, are left out."""
    value = settings.get("eos_token_id")
    tokens = value if isinstance(value, list) else [value]
    return tuple(token for token in tokens if isinstance(token, int) and 0 <= token < vocab_size)


def _get(settings: Settings, name: str) -> Any:
    if name not in settings:
        raise ValueError(f"config.json: expected a value for {name}, got none")
    return settings[name]


def _require(settings: Settings, name: str, value: object) -> None:
    if settings.get(name, value) != value:
        raise ValueError(f"{name}: expected {value!r}, the only value supported, got {settings[name]!r}")


def add_head(parts: dict[str, WeightPart], prefix: str, config: Config) -> dict[str, WeightPart]:
    """The table with `prefix` before the stored names, and with the output matrix unless it is tied."""
    table = {
        ours: part._replace(names=tuple(prefix + name for name in part.names)) for ours, part in parts.items()
    }
    return table if config.tie_word_embeddings else table | {"head.weight": WeightPart(("lm_head.weight",))}


def is_derived(family: Family, name: str) -> bool:
    """Whether a stored tensor is not a parameter (see `Family.derived`)."""
    return re.search(family.derived, name) is not None


_LLAMA = Family(_llama, _llama_parts, "model.", r"rotary_emb\.inv_freq$")

FAMILIES: dict[str, Family] = {
    "gpt2": Family(_gpt2, _gpt2_parts, "transformer.", r"\.attn\.(masked_)?bias$"),
    "llama": _LLAMA,
    "mistral": _LLAMA._replace(config=_mistral),
    "qwen2": _LLAMA._replace(config=_qwen2),
    "qwen3": _LLAMA._replace(config=_qwen3),
}
