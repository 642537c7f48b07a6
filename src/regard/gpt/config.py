"""`Config`: the sizes and choices that make one GPT differ from another.

GPT-2 and the Llama family are values of this class, not classes of their own. This file knows numbers and
names only: `model` builds the modules, and `families` reads the configs of Transformers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from regard.attention.arguments import check_positive, check_whole_number, is_number
from regard.layers import Llama3Scaling
from regard.support.files import shorten

Norm = Literal["layer", "rms"]
Positions = Literal["learned", "rotary"]
Activation = Literal["gelu", "gelu_tanh", "swiglu"]

SIZES = ("vocab_size", "context_length", "num_layers", "num_heads", "d_model")
FLAGS = ("qkv_bias", "out_bias", "mlp_bias", "qk_norm", "tie_word_embeddings")
CHOICES = (("norm", Norm), ("positions", Positions), ("activation", Activation))


@dataclass(frozen=True)
class Config:
    """The sizes and choices of a GPT. The first five are required; the others default to a plain small GPT.

    - `vocab_size`: number of tokens in the vocabulary; `context_length`: the longest input in tokens.
    - `num_layers`, `num_heads` (query heads of each layer) and `d_model`, the width of the residual stream.
    - `num_kv_heads`: key/value heads (default `num_heads`); `head_dim`: width of a head (default
      `d_model // num_heads`).
    - `intermediate_size`: width inside the MLP (default `4 * d_model`, or 8/3 of `d_model` for "swiglu",
      which has three matrices instead of two).
    - `norm`: "layer" (LayerNorm, as in GPT-2) or "rms" (RMSNorm, as in Llama), with `norm_eps`.
    - `positions`: "learned" embeddings, or "rotary" ones with `rotary_base` and `rotary_scaling`.
    - `activation` of the MLP: "gelu", "gelu_tanh" (GPT-2's approximation) or "swiglu".
    - `qkv_bias`, `out_bias`, `mlp_bias`: biases of the projections of the attention and of the MLP.
    - `qk_norm`: RMSNorm of queries and keys (Qwen3).
    - `tie_word_embeddings`: the token embedding is also the output matrix.
    - `window`: sliding window in tokens, one number or a tuple with one for each layer; None is no window.
    - `dropout`: probability, in training only.
    - `eos_token_id`: the tokens that end a text.

    >>> Config(vocab_size=64, context_length=32, num_layers=2, num_heads=4, d_model=16).intermediate_size
    64
    """

    vocab_size: int
    context_length: int
    num_layers: int
    num_heads: int
    d_model: int
    # None is no int: the fields are numbers to every reader, since `_set_defaults` runs before anyone reads
    # them.
    num_kv_heads: int = None  # type: ignore[assignment]  # `_set_defaults` sets this and the next two
    head_dim: int = None  # type: ignore[assignment]
    intermediate_size: int = None  # type: ignore[assignment]
    norm: Norm = "layer"
    norm_eps: float = 1e-5
    positions: Positions = "learned"
    rotary_base: float = 10000.0
    rotary_scaling: Llama3Scaling | None = None
    activation: Activation = "gelu_tanh"
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tie_word_embeddings: bool = True
    window: int | tuple[int | None, ...] | None = None
    dropout: float = 0.0
    eos_token_id: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        # Sizes first: the defaults are computed from them.
        for name in SIZES:
            self._set(name, check_whole_number(name, getattr(self, name)))
        self._set_defaults()
        for name, literal in CHOICES:
            if getattr(self, name) not in get_args(literal):
                values = ", ".join(map(repr, get_args(literal)))
                raise ValueError(f"{name}: expected one of {values}, got {shorten(getattr(self, name))}")
        for name in FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}: expected True or False, got {shorten(getattr(self, name))}")
        check_positive("norm_eps", self.norm_eps)
        check_positive("rotary_base", self.rotary_base)
        if self.rotary_scaling is not None:
            _check_scaling(self.rotary_scaling)
        if self.positions == "rotary" and self.head_dim % 2:
            raise ValueError(f"head_dim: expected an even number for rotary positions, got {self.head_dim}")
        if not is_number(self.dropout) or not 0 <= self.dropout < 1:
            raise ValueError(
                f"dropout: expected a probability from 0 to below 1, got {shorten(self.dropout)}"
            )
        self._check_windows()
        if not isinstance(self.eos_token_id, Iterable):
            raise ValueError(f"eos_token_id: expected a tuple of tokens, got {shorten(self.eos_token_id)}")
        self._set("eos_token_id", tuple(check_whole_number("eos_token_id", x, 0) for x in self.eos_token_id))
        for token in self.eos_token_id:
            if token >= self.vocab_size:
                raise ValueError(
                    f"eos_token_id: expected tokens below vocab_size={self.vocab_size}, got {token}"
                )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the dataclass is frozen

    def _set_defaults(self) -> None:
        """Compute the sizes that were left out, and check those that were given."""
        if self.activation == "swiglu":
            intermediate_size = -(-8 * self.d_model // 96) * 32  # 8/3 · d_model, rounded up to 32
        else:
            intermediate_size = 4 * self.d_model
        defaults = {
            "num_kv_heads": self.num_heads,
            "head_dim": self.d_model // self.num_heads,
            "intermediate_size": intermediate_size,
        }
        for name, value in defaults.items():
            if getattr(self, name) is None:
                # Only where head_dim is left out: Qwen3 has heads whose widths do not add up to d_model.
                if name == "head_dim" and self.d_model % self.num_heads:
                    raise ValueError(
                        f"num_heads: expected a divisor of d_model={self.d_model}, got {self.num_heads}; "
                        "or give head_dim, the width of a head"
                    )
                self._set(name, value)
            self._set(name, check_whole_number(name, getattr(self, name)))
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads: expected a divisor of num_heads={self.num_heads}, got {self.num_kv_heads}"
            )

    def _check_windows(self) -> None:
        if isinstance(self.window, tuple) and len(self.window) != self.num_layers:
            raise ValueError(
                f"window: expected one for each of {self.num_layers} layers, got {len(self.window)}"
            )
        if isinstance(self.window, tuple):
            windows = (n if n is None else check_whole_number("window", n) for n in self.window)
            self._set("window", tuple(windows))
        elif self.window is not None:
            self._set("window", check_whole_number("window", self.window))

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The window of every layer; None where it is at least as long as the context."""
        windows = self.window if isinstance(self.window, tuple) else (self.window,) * self.num_layers
        # Such a window masks nothing: a plain causal mask and a plain cache serve the layer.
        return tuple(None if n is None or n >= self.context_length else n for n in windows)

    def to_json(self) -> dict[str, Any]:
        """A dict that `json.dumps` accepts and `from_json` reads."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if self.rotary_scaling is not None:
            plain["rotary_scaling"] = self.rotary_scaling._asdict()
        # JSON has no tuples; from_json makes tuples of the lists again.
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Self:
        """The config that `to_json` wrote as `plain`; a ValueError names missing and unknown keys."""
        fields = {field.name: field for field in dataclasses.fields(cls)}
        if unknown := sorted(set(plain) - set(fields)):
            raise ValueError(
                f"config: unknown keys {', '.join(unknown)[:200]}; "
                f"the fields of Config are {', '.join(fields)}"
            )
        # Fields with a default may be missing, so that a later version can add some and still read old
        # folders.
        required = [name for name, field in fields.items() if field.default is dataclasses.MISSING]
        if missing := [name for name in required if name not in plain]:
            raise ValueError(f"config: expected {', '.join(required)}; missing: {', '.join(missing)}")
        values: dict[str, Any]
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
        if isinstance(scaling := values.get("rotary_scaling"), Mapping):
            try:
                values["rotary_scaling"] = Llama3Scaling(**scaling)
            except TypeError as error:
                raise ValueError(f"rotary_scaling: {error}") from None
        return cls(**values)


def _check_scaling(scaling: Llama3Scaling) -> None:
    """Raise a ValueError that names the first field of a rotary scaling that cannot be."""
    if not isinstance(scaling, Llama3Scaling):
        raise ValueError(f"rotary_scaling: expected a Llama3Scaling or None, got {shorten(scaling)}")
    for name, value in scaling._asdict().items():
        check_positive(f"rotary_scaling.{name}", value)
    if scaling.low >= scaling.high:
        raise ValueError(f"rotary_scaling: expected low below high, got {scaling.low} and {scaling.high}")
