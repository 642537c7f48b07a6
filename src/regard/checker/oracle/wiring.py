"""How a subject gets from its inputs to queries, keys and values of each head, and from the heads to its
output.

A `Wiring` is what the oracle needs to know of somebody's weights. Finding one is the business of
`projections`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from regard.checker.oracle.question import Question


class Affine(NamedTuple):
    """`x @ weight + bias`; the weight is (in, out)."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        y = x @ self.weight.to(x.dtype)
        return y if self.bias is None else y + self.bias.to(x.dtype)


@dataclass(frozen=True)
class Wiring:
    """Projections, heads, and what happens to queries and keys before they meet.

    Without projections and with `splits` False the inputs are queries, keys and values of split heads
    already.
    """

    heads: int = 1
    groups: int = 1
    query: Affine | None = None
    key: Affine | None = None
    value: Affine | None = None
    out: Affine | None = None
    splits: bool = False  # inputs (B, T, H·D), split here; otherwise (B, H, T, D)
    width: int | None = None  # C, the width of the model
    scale: float | None = None  # a scale that was declared, instead of D ** -0.5
    query_norm: Callable[[Tensor], Tensor] | None = None
    key_norm: Callable[[Tensor], Tensor] | None = None
    rotate: Callable[[Tensor, int], Tensor] | None = None  # (x (B, H, T, D), first position)
    sinks: Tensor | None = None  # (H,) a logit a head that joins the softmax
    unknown: tuple[str, ...] = field(default=())  # parts of the module that the oracle has no place for
    note: str = ""  # how the projections were found, for the report

    def project(self, question: Question, *, view: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, D), keys (B, G, S, D) and values (B, G, S, E); `view` splits them the wrong way.
        Queries (B, H, T, D), keys (B, G, S, D) and values (B, G, S, E); `view` splits them the wrong way."""
        if not self.splits:
            return question.q, question.k, question.v
        inputs = (question.q, question.k, question.v)
        q, k, v = (
            x if layer is None else layer(x)
            for x, layer in zip(inputs, (self.query, self.key, self.value), strict=True)
        )
        return _split(q, self.heads, view), _split(k, self.groups, view), _split(v, self.groups, view)

    def position(self, q: Tensor, k: Tensor, question: Question) -> tuple[Tensor, Tensor]:
        """Queries and keys normalised and turned, where the module does so."""
        q = q if self.query_norm is None else self.query_norm(q)
        k = k if self.key_norm is None else self.key_norm(k)
        if self.rotate is not None:
            q, k = self.rotate(q, k.shape[2] - q.shape[2]), self.rotate(k, 0)
        return q, k

    def finish(
        self, mixed: Tensor, free: Tensor | None, *, view: bool = False, skip: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """The heads' outputs (B, H, T, E) merged and projected; rows that are free in any head are free."""
        if not self.splits:
            return mixed, free
        B, H, T, E = mixed.shape
        merged = mixed.reshape(B, T, H * E) if view else mixed.transpose(1, 2).reshape(B, T, H * E)
        if free is not None:
            spread = free.expand(B, H, T, E)
            spread = spread.reshape(B, T, H * E) if view else spread.transpose(1, 2).reshape(B, T, H * E)
            free = spread.any(-1, keepdim=True)  # (B, T, 1)
        return (merged if self.out is None or skip else self.out(merged)), free


def _split(x: Tensor, heads: int, view: bool) -> Tensor:
    B, T, width = x.shape
    if view:
        return x.reshape(B, heads, T, width // heads)
    return x.reshape(B, T, heads, width // heads).transpose(1, 2)  # (B, H, T, D)
