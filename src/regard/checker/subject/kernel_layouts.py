"""A kernel's layout: how a question becomes the arguments of a call, and its result an answer.

Sequences are packed, (total, H, D) with the cumulative lengths `cu_seqlens` as in FlashAttention's varlen, or
keys stand in a cache: contiguous with lengths, or in pages that a page table finds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from regard.checker.oracle.question import Answer, Question, to_whole_pages
from regard.checker.subject.call_tensors import arrange, tensors_in_result, to_device


@dataclass(frozen=True)
class KernelLayout:
    """One way to call a kernel."""

    names: dict[str, str] = field(default_factory=dict)  # arguments by meaning: {"lengths": "seq_lens"}
    kind: str = ""  # the `layout` of its questions
    description: str = ""  # the shapes of its inputs, for the report
    one_query: bool = False  # every item has one query, as when a model generates
    ragged: bool = False  # items may have lengths of their own
    ragged_queries: bool = False  # they may have different numbers of queries
    square: bool = False  # there must be as many keys as queries
    makes_mask: bool = False  # it returns a mask; the attention on it is the checker's own

    def encode(self, question: Question) -> dict[str, Any]:
        """Return the arguments that hold the inputs, by meaning; those without a name are not passed."""
        return {}

    def decode(self, tensors: list[Tensor], question: Question) -> Answer:
        """Find the answer in the tensors that the kernel returned; by default one of (B, H, T, E)."""
        return Answer(find_shape(tensors, (*question.q.shape[:3], question.v.shape[-1])))

    def run(
        self, target: Callable[..., Any], question: Question, options: dict[str, Any], device: str
    ) -> Answer:
        """Call the kernel on a question; `options` are keyword arguments that say what is wanted."""
        # Only a scale without a default has a name in this layout.
        usual = question.q.shape[-1] ** -0.5
        arguments = self.encode(question) | {"scale": usual if question.scale is None else question.scale}
        arguments["device"] = torch.device(device)
        encoded = {self.names[m]: value for m, value in arguments.items() if m in self.names}
        keywords = {name: to_device(value, device) for name, value in (options | encoded).items()}
        result = target(**keywords)
        tensors = tensors_in_result(result)
        if not tensors and "out" in self.names:  # it wrote into the tensor that it was given
            tensors = [keywords[self.names["out"]]]
        if not tensors and not (self.makes_mask and result is None):
            raise RuntimeError(f"it returned {type(result).__name__}; expected a tensor or (output, lse)")
        return self.decode([to_device(t, "cpu") for t in tensors], question)


def find_shape(tensors: list[Tensor], *shapes: tuple[int, ...]) -> Tensor:
    """Return the first floating-point tensor of one of these shapes; RuntimeError if there is none."""
    for t in tensors:
        if t.dtype.is_floating_point and tuple(t.shape) in shapes:
            return t
    shown = ", ".join(str(tuple(t.shape)) for t in tensors)
    raise RuntimeError(f"returned {shown}; expected an output {shapes[0]}")


def find_optional(tensors: list[Tensor], output: Tensor, *shapes: tuple[int, ...]) -> Tensor | None:
    """Return another tensor than the output of one of these shapes; None if there is none."""
    others = [t for t in tensors if t is not output and t.dtype.is_floating_point]
    return next((t for t in others if tuple(t.shape) in shapes), None)


def int32(numbers: Any) -> Tensor:
    """Return integers as kernels take them."""
    return torch.tensor(numbers, dtype=torch.int32)


CACHED_LAYOUTS = ("cache", "paged", "paged or not")


@dataclass(frozen=True)
class TensorLayout(KernelLayout):
    """Sequences packed without padding, or queries on keys in a cache: contiguous, or in pages.

    `queries` are "BHD" (one query each), "BTHD", "BHTD" or "packed"; `keys` are "packed", or in a cache whose
    order is "SG" (position, head) or "GS". Pages are (pages, page size, G, D) or (pages, G, page size, D).
    """

    queries: str = "packed"
    keys: str = "packed"
    single: bool = False  # one query with an axis of its own
    ragged: bool = True

    def encode(self, question: Question) -> dict[str, Any]:
        queries, keys = question.all_lengths()
        packed = self.queries == "packed"
        q = pack(question.q, queries) if packed else arrange(question.q, "BHTD", self.queries)
        k, v, tables = question.k, question.v, None
        if question.page is not None:
            tables, k, v = _to_pages(question, keys, question.page)
        if self.keys == "packed":
            k, v = pack(k, keys), pack(v, keys)
        elif (self.keys == "SG") == (tables is None):  # pages are made in the order "SG"
            k, v = k.transpose(1, 2), v.transpose(1, 2)
        arguments: dict[str, Any] = {"query": q, "key": k, "value": v}
        if "qkv" in self.names:
            arguments["qkv"] = torch.stack([q, k, v], 1)  # (total, 3, H, D)
        if "kv" in self.names:
            arguments["kv"] = torch.stack([k, v], 1)
        if tables is not None:
            arguments |= {"page table": tables, "page size": question.page}
        arguments |= {"query starts": starts(queries), "key starts": starts(keys), "lengths": int32(keys)}
        arguments |= {"longest query": max(queries), "longest key": max(keys), "batch": len(queries)}
        return arguments | {
            "groups": question.k.shape[1],
            "out": q.new_empty(*q.shape[:-1], question.v.shape[-1]),
        }

    def decode(self, tensors: list[Tensor], question: Question) -> Answer:
        B, H, T, E = (*question.q.shape[:3], question.v.shape[-1])
        lengths = question.all_lengths()[0]
        total, sizes = sum(lengths), {"B": B, "H": H, "T": T, "D": E}
        if self.queries != "packed":
            output = find_shape(tensors, tuple(sizes[axis] for axis in self.queries))
            lse = find_optional(tensors, output, (B, H, T), *([(B, H)] if T == 1 else []))
            lse = None if lse is None else lse.reshape(B, H, T)
            return Answer(arrange(output, self.queries, "BHTD"), None, lse)
        output = find_shape(tensors, (total, H, E))
        # flash-attn returns (H, total), its earlier versions (B, H, longest), and FlashInfer (total, H).
        lse = find_optional(tensors, output, (H, total), (total, H), (B, H, max(lengths)), (B, H, T))
        if lse is not None and lse.ndim == 2:
            by_token = lse.T if lse.shape == (H, total) else lse
            lse = unpack(by_token[..., None], lengths)[..., 0]
        return Answer(unpack(output, lengths), None, lse)


def starts(lengths: tuple[int, ...]) -> Tensor:
    """Return where every sequence starts, and where the last one ends."""
    return int32([0, *accumulate(lengths)])


def pack(x: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Pack (B, H, T, D) into (total, H, D)."""
    return torch.cat([x[b, :, :n].transpose(0, 1) for b, n in enumerate(lengths)])


def unpack(x: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Unpack (total, H, E) into (B, H, T, E), with zeros beyond a sequence's end."""
    parts = list(torch.split(x, list(lengths)))
    return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True).transpose(1, 2)


def _to_pages(question: Question, lengths: tuple[int, ...], page: int) -> tuple[Tensor, Tensor, Tensor]:
    """Lay keys and values out in pages in a shuffled order.

    Returns the page table (B, most pages of an item), and keys and values (pages, page, G, D). Pages that
    belong to nobody hold numbers too.
    """
    counts = [-(-n // page) for n in lengths]
    total = sum(counts) + 2
    order = torch.randperm(total, generator=torch.Generator().manual_seed(7)).tolist()
    # Beyond an item's end the table points to a page of nobody, whose numbers would show in the output.
    tables = torch.full((len(lengths), max(counts)), order[-1], dtype=torch.int32)
    k, v = (x[:1, :, :1].transpose(1, 2).repeat(total, page, 1, 1) * 3.0 for x in (question.k, question.v))
    used = iter(order)
    for b, n in enumerate(lengths):
        whole = [to_whole_pages(x[b, :, :n], page).transpose(0, 1) for x in (question.k, question.v)]
        for i in range(counts[b]):
            tables[b, i] = place = next(used)
            span = slice(i * page, (i + 1) * page)
            k[place], v[place] = whole[0][span], whole[1][span]
    return tables, k, v
