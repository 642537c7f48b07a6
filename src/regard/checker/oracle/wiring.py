"""How a module's weights are wired: from its inputs to queries, keys and values, and from heads to output.

A `Wiring` is all that the oracle knows of a module. `projections` finds one. Rotary positions turn pairs of
channels by angles that grow with the position. Their frequencies are data, so that any base, any scaling and
any number of rotated channels can be tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from regard.checker.oracle.question import Question

# How the heads are split; all but the first are mistakes.
Split = Literal[
    "transpose",
    "view",  # without a transpose
    "fused view",  # the same, of queries, keys and values at once
    "interleave",  # channel by channel: the channels of a head are H apart
]


@dataclass(frozen=True)
class Rotation:
    """Turns the first `2n` channels of a head by n frequencies, and leaves the others unchanged."""

    frequencies: Tensor  # (n,), radians per position
    pairing: str = "half"  # channel i with i + n; or "interleaved": 2i with 2i + 1
    precision: torch.dtype = torch.float64  # of the angles
    # Two mistakes: "mixed" has the angles of the other pairing, "unsigned" turns (a, b) into
    # (a cos + b sin, b cos + a sin).
    form: Literal["right", "mixed", "unsigned"] = "right"

    def __call__(self, x: Tensor, start: int) -> Tensor:
        """Return x (B, H, T, D) turned, its first token at position `start`."""
        n = len(self.frequencies)
        if 2 * n > x.shape[-1]:
            raise ValueError(f"{2 * n} rotated channels do not fit a head of {x.shape[-1]}")
        positions = torch.arange(start, start + x.shape[2], dtype=torch.float64, device=x.device)
        angles = positions.to(self.precision)[:, None] * self._rounded_frequencies().to(x.device)  # (T, n)
        part, rest = x[..., : 2 * n], x[..., 2 * n :]
        adjacent = self.pairing == "interleaved"
        a, b = part.reshape(*part.shape[:-1], n, 2).unbind(-1) if adjacent else part.chunk(2, -1)
        b = b if self.form == "unsigned" else -b
        partner = torch.stack([b, a], -1).flatten(-2) if adjacent else torch.cat([b, a], -1)
        repeated = adjacent != (self.form == "mixed")
        angles = angles.repeat_interleave(2, -1) if repeated else torch.cat([angles, angles], -1)
        turned = part * angles.cos().to(x.dtype) + partner * angles.sin().to(x.dtype)
        return torch.cat([turned, rest], -1)

    def _rounded_frequencies(self) -> Tensor:
        """Return the frequencies, rounded as a power of the base is at this precision."""
        if self.precision == torch.float64:
            return self.frequencies.double()
        return (
            self.frequencies.sign().to(self.precision) * self.frequencies.abs().log().to(self.precision).exp()
        )


class Affine(NamedTuple):
    """`x @ weight + bias`; the weight is (in, out)."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        y = x @ self.weight.to(x.dtype)
        return y if self.bias is None else y + self.bias.to(x.dtype)


@dataclass(frozen=True)
class Wiring:
    """The projections and heads of a module, and what it does to queries and keys before the scores.

    Without projections and with `splits` False, the inputs are queries, keys and values of split heads.
    """

    heads: int = 1
    groups: int = 1
    query: Affine | None = None
    key: Affine | None = None
    value: Affine | None = None
    out: Affine | None = None
    splits: bool = False  # inputs (B, T, H·D), split here; otherwise (B, H, T, D)
    width: int | None = None  # C, the width of the model
    scale: float | None = None  # a declared scale, instead of D ** -0.5
    query_norm: Callable[[Tensor], Tensor] | None = None
    key_norm: Callable[[Tensor], Tensor] | None = None
    rotate: Callable[[Tensor, int], Tensor] | None = None  # (x (B, H, T, D), first position)
    sinks: Tensor | None = None  # (H,), one sink logit per head
    bias: Callable[[int, int, int], Tensor] | None = None  # (H, T, S) -> what is added to the scaled scores
    unknown: tuple[str, ...] = field(default=())  # parts of the module that the oracle cannot reproduce

    def project(self, question: Question, *, split: Split = "transpose") -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (B, H, T, D), keys (B, G, S, D) and values (B, G, S, E)."""
        if not self.splits:
            return question.q, question.k, question.v
        inputs = (question.q, question.k, question.v)
        q, k, v = (
            x if layer is None else layer(x)
            for x, layer in zip(inputs, (self.query, self.key, self.value), strict=True)
        )
        return self.split(q, k, v, split)

    def split(self, q: Tensor, k: Tensor, v: Tensor, how: Split) -> tuple[Tensor, Tensor, Tensor]:
        """Split the heads of queries, keys and values (B, T, width)."""
        if how == "fused view":
            B, T, width = q.shape
            fused = torch.cat([q, k, v], -1).reshape(B, 3, self.heads, T, width // self.heads)
            return fused[:, 0], fused[:, 1], fused[:, 2]
        if how == "interleave":  # `b t (d h)`
            q, k, v = (
                x.unflatten(-1, (-1, heads)).mT.flatten(-2)  # type: ignore[no-untyped-call]
                for x, heads in ((q, self.heads), (k, self.groups), (v, self.groups))
            )
        view = how == "view"
        return (
            split_heads(q, self.heads, view),
            split_heads(k, self.groups, view),
            split_heads(v, self.groups, view),
        )

    def position(
        self, q: Tensor, k: Tensor, v: Tensor, rotated: str = "qk", starts: tuple[int, int] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, normalised and rotated as the module does it.

        `rotated` names those that are rotated; another choice than queries and keys is a mistake. `starts`
        are the positions of the first query and the first key, by default such that the last ones are equal.
        """
        # A norm may compute in float32 and return that.
        q = q if self.query_norm is None else self.query_norm(q).to(q.dtype)
        k = k if self.key_norm is None else self.key_norm(k).to(k.dtype)
        if self.rotate is not None:
            query_start, key_start = starts or (k.shape[2] - q.shape[2], 0)
            q = self.rotate(q, query_start) if "q" in rotated else q
            k = self.rotate(k, key_start) if "k" in rotated else k
            v = self.rotate(v, 0) if "v" in rotated else v
        return q, k, v

    def finish(
        self, mixed: Tensor, free: Tensor | None, *, view: bool = False, skip: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Merge and project the heads' outputs (B, H, T, E), and merge the mask of free rows.

        A row that is free in any head is free. `view` merges without a transpose, `skip` leaves out the
        output projection: both are mistakes.
        """
        if not self.splits:
            return mixed, free
        B, H, T, E = mixed.shape
        merged = mixed.reshape(B, T, H * E) if view else mixed.transpose(1, 2).reshape(B, T, H * E)
        if free is not None:
            spread = free.expand(B, H, T, E)
            spread = spread.reshape(B, T, H * E) if view else spread.transpose(1, 2).reshape(B, T, H * E)
            free = spread.any(-1, keepdim=True)  # (B, T, 1)
        return (merged if self.out is None or skip else self.out(merged)), free


def split_heads(x: Tensor, heads: int, view: bool) -> Tensor:
    """Split the heads of (B, T, H·D) into (B, H, T, D)."""
    B, T, width = x.shape
    if view:
        return x.reshape(B, heads, T, width // heads)
    return x.reshape(B, T, heads, width // heads).transpose(1, 2)  # (B, H, T, D)
