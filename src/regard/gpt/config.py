"""`Config`: the sizes and choices that make one GPT differ from another.

GPT-2 and the Llama family are values of this class, not classes of their own. It knows numbers and names
only: `model` builds what it says, and `families` fills it in from other people's files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from regard.attention.arguments import check_positive, check_whole_number
from regard.layers import Llama3Scaling

Norm = Literal["layer", "rms"]
Positions = Literal["learned", "rotary"]
Activation = Literal["gelu", "gelu_tanh", "swiglu"]


@dataclass(frozen=True)
class Config:
    """What a GPT is made of. The five sizes are needed; the rest has the values of a plain small GPT.

    - `context`: the most tokens it can look back on; `width`: of the stream between the blocks.
    - `kv_heads` (as many as `heads`), `head_width` (`width // heads`), `hidden`, the width inside the
      feed-forward part (4 · `width`, or 8/3 of it for "swiglu", which has three matrices instead of two).
    - `norm`: "layer" (GPT-2) or "rms" (Llama); `positions`: "learned" or "rotary" with its base and scaling.
    - `activation`: "gelu", "gelu_tanh" (GPT-2's) or "swiglu"; biases of the three kinds of projection.
    - `qk_norm`: RMSNorm of queries and keys (Qwen3); `tied`: the embedding is the output matrix as well.
    - `window`: how many tokens each layer may look back on, one number or one a layer, None for all.
    - `dropout`: in training only. `end`: the tokens that end a text.

    >>> Config(vocab_size=64, context=32, layers=2, heads=4, width=16).hidden
    64
    """

    vocab_size: int
    context: int
    layers: int
    heads: int
    width: int
    kv_heads: int = None  # type: ignore[assignment]  # filled in from the sizes, as the next two
    head_width: int = None  # type: ignore[assignment]
    hidden: int = None  # type: ignore[assignment]
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
    tied: bool = True
    window: int | tuple[int | None, ...] | None = None
    dropout: float = 0.0
    end: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context", "layers", "heads", "width"):
            self._set(name, check_whole_number(name, getattr(self, name)))
        self._fill_in()
        for name, choices in (("norm", Norm), ("positions", Positions), ("activation", Activation)):
            if getattr(self, name) not in get_args(choices):
                known = ", ".join(map(repr, get_args(choices)))
                raise ValueError(f"{name}: expected one of {known}, got {getattr(self, name)!r}")
        for name in ("qkv_bias", "out_bias", "mlp_bias", "qk_norm", "tied"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}: expected True or False, got {getattr(self, name)!r}")
        check_positive("norm_eps", self.norm_eps)
        check_positive("rotary_base", self.rotary_base)
        if self.positions == "rotary" and self.head_width % 2:
            raise ValueError(f"head_width: expected an even number for rotary, got {self.head_width}")
        if isinstance(self.dropout, bool) or not 0 <= self.dropout < 1:
            raise ValueError(f"dropout: expected a probability from 0 to below 1, got {self.dropout!r}")
        if isinstance(self.window, tuple) and len(self.window) != self.layers:
            raise ValueError(f"window: expected one for each of {self.layers} layers, got {len(self.window)}")
        if isinstance(self.window, tuple):
            windows = (n if n is None else check_whole_number("window", n) for n in self.window)
            self._set("window", tuple(windows))
        elif self.window is not None:
            self._set("window", check_whole_number("window", self.window))
        self._set("end", tuple(check_whole_number("end", token, 0) for token in self.end))
        if max(self.end, default=0) >= self.vocab_size:
            raise ValueError(f"end: expected tokens below vocab_size={self.vocab_size}, got {max(self.end)}")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the dataclass is frozen for everyone else

    def _fill_in(self) -> None:
        """What was left out and follows from the sizes."""
        inside = 4 * self.width if self.activation != "swiglu" else -(-8 * self.width // 96) * 32
        usual = {"kv_heads": self.heads, "head_width": self.width // self.heads, "hidden": inside}
        for name, value in usual.items():
            if getattr(self, name) is None:
                if name == "head_width" and self.width % self.heads:
                    wanted = f"expected a divisor of width={self.width}, got {self.heads}"
                    raise ValueError(f"heads: {wanted}; or give head_width, the width of a head")
                self._set(name, value)
            self._set(name, check_whole_number(name, getattr(self, name)))
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads: expected a divisor of heads={self.heads}, got {self.kv_heads}")

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The window of every layer; None where it is no narrower than the context."""
        given = self.window if isinstance(self.window, tuple) else (self.window,) * self.layers
        return tuple(None if n is None or n >= self.context else n for n in given)

    def to_json(self) -> dict[str, Any]:
        """A plain dict that `json.dumps` takes and `from_json` reads."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if self.rotary_scaling is not None:
            plain["rotary_scaling"] = self.rotary_scaling._asdict()
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Self:
        """The config that `to_json` wrote; ValueError names what is missing or unknown."""
        fields = {field.name: field for field in dataclasses.fields(cls)}
        if unknown := sorted(set(plain) - set(fields)):
            raise ValueError(f"config: expected only the names of Config's fields, got {', '.join(unknown)}")
        needed = [name for name, field in fields.items() if field.default is dataclasses.MISSING]
        if missing := [name for name in needed if name not in plain]:
            raise ValueError(f"config: expected {', '.join(needed)}; missing: {', '.join(missing)}")
        values: dict[str, Any]
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
        if isinstance(scaling := values.get("rotary_scaling"), Mapping):
            try:
                values["rotary_scaling"] = Llama3Scaling(**scaling)
            except TypeError as error:
                raise ValueError(f"rotary_scaling: {error}") from None
        return cls(**values)
