"""One test case for an implementation: inputs, and which attention of them is wanted.

The inputs are (B, H, T, D) for functions on split heads and (B, T, C) for code that splits its heads itself.
In a mask True means visible, whatever convention the code under test follows: `subject` translates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.attention.masks.base import Mask


@dataclass(frozen=True)
class Question:
    """Attention of `q` on `k` and `v`, with a name for the report."""

    name: str
    q: Tensor
    k: Tensor
    v: Tensor
    causal: bool = False  # whether the correct answer is causal
    mask: Tensor | None = None  # boolean (T, S) or (B, 1, T, S)
    padding: Tensor | None = None  # boolean (B, S), True where there is a token
    bias: Tensor | None = None  # float (T, S), added to the scaled scores
    window: int | None = None
    softcap: float | None = None
    rule: Mask | None = None  # a mask that the module holds itself
    flag: bool | None = None  # the value of the code's own causal argument; None does not pass it
    scale: float | None = None  # the value of the code's own scale argument; None leaves it to its default
    ahead: int | None = None  # how many later keys a window shows; None for all of them
    sinks: Tensor | None = None  # (H,), one sink logit per head
    layout: str = ""  # how a kernel takes its inputs: "packed", "paged" …; "" for plain tensors
    lengths: tuple[tuple[int, ...], tuple[int, ...]] | None = None  # queries and keys of every item; or all
    page: int | None = None  # keys per page, if they are in pages
    splits: int | None = None  # in how many parts the keys are worked on
    surplus: int = 0  # keys at the end that are not part of the sequence: a mistake reads them
    extra: dict[str, Any] = field(default_factory=dict)  # further arguments of the call

    @property
    def is_self_attention(self) -> bool:
        """Whether queries, keys and values come from one sequence."""
        return self.q is self.k

    @property
    def dtype(self) -> torch.dtype:
        """The inputs' dtype."""
        return self.q.dtype

    def to(self, dtype: torch.dtype) -> Question:
        """Return the question with its inputs and its bias in another dtype."""
        bias = None if self.bias is None else self.bias.to(dtype)
        return replace(self.map_inputs(lambda x: x.to(dtype)), bias=bias)

    def all_lengths(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the number of queries and of keys of every item."""
        B, T, S = self.q.shape[0], self.q.shape[-2], self.k.shape[-2]
        return self.lengths or ((T,) * B, (S,) * B)

    def map_inputs(self, function: Callable[[Tensor], Tensor]) -> Question:
        """Return the question with a function applied to its inputs. One sequence stays one sequence."""
        q = function(self.q)
        k = q if self.k is self.q else function(self.k)
        v = q if self.v is self.q else k if self.v is self.k else function(self.v)
        return replace(self, q=q, k=k, v=v)

    def tracked(self, dtype: torch.dtype) -> Question:
        """Return the question in a dtype, with inputs that record gradients: its `leaves`."""
        return self.to(dtype).map_inputs(lambda x: x.clone().requires_grad_())

    def leaves(self) -> list[Tensor]:
        """Return the inputs, each once."""
        return list(self.named_leaves().values())

    def named_leaves(self) -> dict[str, Tensor]:
        """Return the inputs by their names, each once: "q", "k" and "v", or "x" for a single sequence."""
        # Later entries win, so that a tensor in several roles has the first of their names.
        unique = {id(x): (name, x) for name, x in (("v", self.v), ("k", self.k), ("q", self.q))}
        return dict(reversed(unique.values())) if len(unique) > 1 else {"x": self.q}

    def items(self) -> Iterator[Question]:
        """Yield each sequence of the batch as a question of its own."""

        def item(x: Tensor | None, b: int) -> Tensor | None:
            # A mask (T, S) is the same for every item.
            return x if x is None or x.ndim < 4 else x[b : b + 1]

        for b in range(self.q.shape[0]):
            alone = self.map_inputs(partial(torch.narrow, dim=0, start=b, length=1))
            padding = None if self.padding is None else self.padding[b : b + 1]
            yield replace(alone, mask=item(self.mask, b), padding=padding, bias=item(self.bias, b))

    def shapes(self) -> str:
        """Return the shapes of the inputs as text."""
        if self.is_self_attention:
            return f"x {tuple(self.q.shape)}"
        return f"q {tuple(self.q.shape)}, k {tuple(self.k.shape)}, v {tuple(self.v.shape)}"
