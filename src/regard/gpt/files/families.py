"""The model families that can be loaded: how to read their `config.json`, and where each tensor goes.

A `Family` is two functions: from the settings of Transformers to a `Config`, and from a `Config` to a table
of the stored tensors that make up each parameter of `GPT`. This file knows names and conventions; it reads no
files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from regard.attention.arguments import check_positive, check_whole_number
from regard.gpt.config import Activation, Config
from regard.layers import Llama3Scaling
from regard.support.files import check_type, shorten

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
    layers: str = "num_hidden_layers"
    """The name of the setting that counts the layers."""
    derived: str = r"(?!)"
    """A pattern for tensors of old files that are not parameters, such as causal masks and rotary angles."""


def find_family(settings: Settings) -> Family:
    """The family that the `model_type` of a `config.json` names; a ValueError lists those supported."""
    name = settings.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise ValueError(f"model_type: expected one of {', '.join(sorted(FAMILIES))}, got {shorten(name)}")
    # Such a folder stores packed integers under the names of the weights, with their scales beside them.
    if "quantization_config" in settings:
        raise ValueError(
            "quantization_config: expected weights that are not quantised; "
            "of quantised models only GGUF files can be loaded"
        )
    return FAMILIES[name]


def _gpt2(settings: Settings) -> Config:
    # Both settings change the scale of the scores, which GPT computes as 1/√D.
    for name, value in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False)):
        _require(settings, name, value)
    # Two names of Transformers for the tanh approximation, and one for the exact function.
    activations: dict[str, Activation] = {
        "gelu_new": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "gelu": "gelu",
    }
    activation = settings.get("activation_function", "gelu_new")
    if not isinstance(activation, str) or activation not in activations:
        expected = ", ".join(activations)
        raise ValueError(f"activation_function: expected one of {expected}, got {shorten(activation)}")
    vocab_size, width = _size(settings, "vocab_size"), _size(settings, "n_embd")
    return Config(
        vocab_size=vocab_size,
        context_length=_size(settings, "n_positions"),
        num_layers=_size(settings, "n_layer"),
        num_heads=_size(settings, "n_head"),
        d_model=width,
        intermediate_size=_size(settings, "n_inner", 4 * width),
        norm_eps=_positive(settings, "layer_norm_epsilon", 1e-5),
        activation=activations[activation],
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        tie_word_embeddings=_flag(settings, "tie_word_embeddings", True),
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
    biased = _flag(settings, "attention_bias", False)
    return _llama_like(
        settings, qkv_bias=biased, out_bias=biased, mlp_bias=_flag(settings, "mlp_bias", False)
    )


def _qwen3(settings: Settings) -> Config:
    biased = _flag(settings, "attention_bias", False)
    return _llama_like(
        # Qwen3Config has 128 where the file says nothing; Llama and Qwen2 have d_model / num_heads.
        {"head_dim": 128, **settings},
        qkv_bias=biased,
        out_bias=biased,
        qk_norm=True,
        window=_qwen_windows(settings),
    )


def _llama_like(settings: Settings, **choices: Any) -> Config:
    """A Llama with the given `choices`, which are fields of `Config`."""
    _require(settings, "hidden_act", "silu")
    # The rotary functions of Transformers read it for every family; GPT rotates whole heads only.
    _require(settings, "partial_rotary_factor", 1.0)
    # Transformers 5 writes rope_parameters, with rope_theta inside; earlier versions rope_scaling and
    # rope_theta.
    name = "rope_parameters" if settings.get("rope_parameters") else "rope_scaling"
    rope = check_type(name, settings.get(name) or {}, dict)
    theta = _positive(settings, "rope_theta", 10000.0)
    vocab_size, heads = _size(settings, "vocab_size"), _size(settings, "num_attention_heads")
    return Config(
        vocab_size=vocab_size,
        context_length=_size(settings, "max_position_embeddings"),
        num_layers=_size(settings, "num_hidden_layers"),
        num_heads=heads,
        d_model=_size(settings, "hidden_size"),
        num_kv_heads=_size(settings, "num_key_value_heads", heads),
        # None is Config's default.
        head_dim=_size(settings, "head_dim") if settings.get("head_dim") else None,  # type: ignore[arg-type]
        intermediate_size=_size(settings, "intermediate_size"),
        norm="rms",
        norm_eps=_positive(settings, "rms_norm_eps", 1e-6),
        positions="rotary",
        rotary_base=_positive(rope, "rope_theta", theta),
        rotary_scaling=_rotary_scaling(rope),
        activation="swiglu",
        tie_word_embeddings=_flag(settings, "tie_word_embeddings", False),
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
    size = _window(settings) if _flag(settings, "use_sliding_window", False) else None
    layers = _size(settings, "num_hidden_layers")
    types = settings.get("layer_types")
    if types is None:
        # Qwen2Config's and Qwen3Config's own default where a file lacks the field.
        first = check_type("max_window_layers", settings.get("max_window_layers", 28), int)
        types = ["sliding_attention" if layer >= first else "full_attention" for layer in range(layers)]
    types = [check_type("layer_types", kind, str) for kind in check_type("layer_types", types, list)]
    if unknown := set(types) - {"sliding_attention", "full_attention"}:
        raise ValueError(
            f"layer_types: expected sliding_attention or full_attention, got {shorten(sorted(unknown))}"
        )
    if len(types) != layers:
        raise ValueError(f"layer_types: expected one for each of {layers} layers, got {len(types)}")
    return tuple(size if kind == "sliding_attention" else None for kind in types) if size else None


def _rotary_scaling(rope: Settings) -> Llama3Scaling | None:
    # Transformers called it type at first.
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ValueError(f"rope_type: expected default or llama3, got {shorten(kind)}")
    return Llama3Scaling(
        factor=_positive(rope, "factor"),
        low=_positive(rope, "low_freq_factor"),
        high=_positive(rope, "high_freq_factor"),
        original_length=_size(rope, "original_max_position_embeddings"),
    )


def _eos_token_id(settings: Settings, vocab_size: int) -> tuple[int, ...]:
    """The tokens that end a text; those outside the vocabulary, which some files name, are left out."""
    # Llama 3 has a list of ids, GPT-2 one number, and some files null.
    value = settings.get("eos_token_id")
    tokens = value if isinstance(value, list) else [value]
    return tuple(token for token in tokens if type(token) is int and 0 <= token < vocab_size)


def _window(settings: Settings) -> int | None:
    """The sliding window; null is none."""
    # MistralConfig's own default where a file lacks the field; null is written for no window.
    value = settings.get("sliding_window", 4096)
    return None if value is None else check_whole_number("sliding_window", value)


def _size(settings: Settings, name: str, default: int | None = None) -> int:
    """A whole number of at least 1; the default, if there is one, stands for null, 0 and nothing."""
    return check_whole_number(name, _value(settings, name, default))


def _positive(settings: Settings, name: str, default: float | None = None) -> float:
    """A number above 0; the default, if there is one, stands for null, 0 and nothing."""
    return check_positive(name, _value(settings, name, default))


def _value(settings: Settings, name: str, default: Any) -> Any:
    if default is not None and not settings.get(name):
        return default
    if name not in settings:
        raise ValueError(f"config.json: expected a value for {name}, got none")
    return settings[name]


def _flag(settings: Settings, name: str, default: bool) -> bool:
    """True or false; the default stands for null and nothing."""
    value = settings.get(name)
    return default if value is None else check_type(name, value, bool)


def _require(settings: Settings, name: str, value: object) -> None:
    # A field that is missing has the default of Transformers, which is the value that is supported.
    if settings.get(name, value) != value:
        raise ValueError(
            f"{name}: expected {value!r}, the only value supported, got {shorten(settings[name])}"
        )


def add_head(parts: dict[str, WeightPart], prefix: str, config: Config) -> dict[str, WeightPart]:
    """The table with `prefix` before the stored names, and with the output matrix unless it is tied."""
    table = {
        ours: part._replace(names=tuple(prefix + name for name in part.names)) for ours, part in parts.items()
    }
    return table if config.tie_word_embeddings else table | {"head.weight": WeightPart(("lm_head.weight",))}


def is_derived(family: Family, name: str) -> bool:
    """Whether a stored tensor is not a parameter (see `Family.derived`)."""
    return re.search(family.derived, name) is not None


# A buffer that older versions of Transformers saved with the weights.
_LLAMA = Family(_llama, _llama_parts, "model.", derived=r"rotary_emb\.inv_freq$")

FAMILIES: dict[str, Family] = {
    # h.*.attn.bias is the causal mask as a buffer, which GPT-2's own files on the hub hold.
    "gpt2": Family(_gpt2, _gpt2_parts, "transformer.", "n_layer", r"\.attn\.(masked_)?bias$"),
    "llama": _LLAMA,
    "mistral": _LLAMA._replace(config=lambda x: _llama_like(x, window=_window(x))),
    "qwen2": _LLAMA._replace(config=lambda x: _llama_like(x, qkv_bias=True, window=_qwen_windows(x))),
    "qwen3": _LLAMA._replace(config=_qwen3),
}
