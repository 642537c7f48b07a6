"""One test case for an implementation, and its answer: inputs, which attention of them is wanted, what came.

The inputs are (B, H, T, D) for functions on split heads and (B, T, C) for code that splits its heads itself.
In a mask True means visible, whatever convention the code under test follows: `subject` translates.

Batches whose items have lengths of their own, as packed and paged kernels take them, are answered one by one.
The keys that an item reads beyond its own are a mistake, which `Reach` names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from regard.attention.masks.base import Mask

Reach = Literal[
    "own",
    "all",  # the whole cache
    "page",  # to the end of its last page
    "next",  # the first key of the next item
    "next, beside the mask",  # the same, while the mask counts only its own keys
    "previous",  # the last key of the previous item
    "short",  # its own last key is missing
]


class Answer(NamedTuple):
    """The result of attention. `free` marks rows (…, T, 1) for which any output is accepted."""

    output: Tensor
    weights: Tensor | None = None  # (B, H, T, S)
    lse: Tensor | None = None  # (B, H, T)
    free: Tensor | None = None


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

    @property
    def padded_keys(self) -> Tensor | None:
        """The positions (B, 1, S, 1), or (B, S, 1) of sequences, without a token; None without padding."""
        if self.padding is None:
            return None
        return ~self.padding[:, None, :, None] if self.k.ndim == 4 else ~self.padding[:, :, None]

    @property
    def padded_rows(self) -> Tensor | None:
        """Those of them that are rows of the output, too."""
        return self.padded_keys if self.q.shape[-2] == self.k.shape[-2] else None

    def options(self) -> tuple[str, ...]:
        """Return the names of what it asks beside queries, keys and values."""
        names = ("mask", "padding", "bias", "window", "ahead", "softcap", "sinks")
        there = tuple(name for name in names if getattr(self, name) is not None)
        return ("causal", *there) if self.causal else there

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

    def map_keys(self, function: Callable[[Tensor], Tensor]) -> Question:
        """Return the question with a function applied to its keys and values; to x, in self-attention."""
        if self.is_self_attention:
            return self.map_inputs(function)
        k = function(self.k)
        return replace(self, k=k, v=k if self.v is self.k else function(self.v))

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


def answer_items(
    question: Question, answer: Callable[[Question], Answer], reach: Reach = "own", *, together: bool = False
) -> Answer:
    """Answer every item of a batch alone, in its own length; rows beyond it are free.

    `answer` answers a question of one item. With `together` the items are one long sequence, a mistake.
    """
    lengths = question.all_lengths()
    if together:
        parts = _split_answer(answer(_joined(question)), lengths[0])
    else:
        parts = [answer(_item(question, b, reach)) for b in range(len(lengths[0]))]
    return _pad(parts, question)


def _item(question: Question, b: int, reach: Reach) -> Question:
    """Return the question of one item, with the keys that it reads."""
    T, S = (n[b] for n in question.all_lengths())
    q = question.q[b : b + 1, :, :T]
    k, v = (_keys(x, question, b, S, reach) for x in (question.k, question.v))
    surplus = k.shape[2] - S if reach == "next, beside the mask" else 0
    return replace(question, q=q, k=k, v=v, lengths=None, layout="", surplus=surplus)


def _keys(x: Tensor, question: Question, b: int, S: int, reach: Reach) -> Tensor:
    """Return the keys or values (1, G, S, D) that item b reads."""
    own = x[b : b + 1, :, :S]
    if reach == "all":
        return x[b : b + 1]
    if reach == "page" and question.page is not None:
        return to_whole_pages(own, question.page)
    if reach.startswith("next") and b + 1 < x.shape[0]:
        return torch.cat([own, x[b + 1 : b + 2, :, :1]], 2)
    if reach == "previous" and b > 0:
        last = question.all_lengths()[1][b - 1] - 1
        return torch.cat([x[b - 1 : b, :, last : last + 1], own], 2)
    return own[:, :, :-1] if reach == "short" and S > 1 else own


def to_whole_pages(x: Tensor, page: int) -> Tensor:
    """Lengthen (…, S, D) to a whole number of pages. What the tail holds is left over from earlier texts."""
    missing = -x.shape[-2] % page
    return torch.cat([x, 1.0 - 2.0 * x[..., :1, :].expand(*x.shape[:-2], missing, x.shape[-1])], -2)


def _joined(question: Question) -> Question:
    """Return the question with its items as one long sequence."""
    queries, keys = question.all_lengths()

    def join(x: Tensor, lengths: tuple[int, ...]) -> Tensor:
        return torch.cat([x[b : b + 1, :, :n] for b, n in enumerate(lengths)], 2)

    q, k, v = join(question.q, queries), join(question.k, keys), join(question.v, keys)
    return replace(question, q=q, k=k, v=v, lengths=None, layout="")


def _split_answer(answer: Answer, lengths: tuple[int, ...]) -> list[Answer]:
    """Return the answers of the items of one long sequence."""
    outputs = torch.split(answer.output, list(lengths), 2)
    free = [None] * len(lengths) if answer.free is None else torch.split(answer.free, list(lengths), 2)
    return [Answer(output, free=rows) for output, rows in zip(outputs, free, strict=True)]


def _pad(parts: list[Answer], question: Question) -> Answer:
    """Return the answers of the items as one batch; what lies beyond an item's length is free."""
    B, H, T, E = (*question.q.shape[:3], question.v.shape[-1])
    output = question.q.new_zeros(B, H, T, E)
    free = torch.ones(B, H, T, 1, dtype=torch.bool, device=output.device)
    lse = question.q.new_zeros(B, H, T)
    for b, part in enumerate(parts):
        rows = part.output.shape[2]
        output[b, :, :rows] = part.output[0]
        free[b, :, :rows] = False if part.free is None else part.free[0]
        if part.lse is not None:
            lse[b, :, :rows] = part.lse[0]
    whole = bool((~free).all())
    has_lse = all(part.lse is not None for part in parts)
    return Answer(output, None, lse if has_lse else None, None if whole else free)
