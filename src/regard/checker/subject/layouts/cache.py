"""Keys in a cache: contiguous with lengths, or in pages that a page table finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.checker.oracle.answer import Answer
from regard.checker.oracle.question import Question
from regard.checker.oracle.ragged_batch import to_whole_pages
from regard.checker.subject.layouts.layout import KernelLayout, find_optional, find_shape, int32
from regard.checker.subject.layouts.packed_sequences import pack, starts, unpack

CACHED_LAYOUTS = ("cache", "paged", "paged or not")


@dataclass(frozen=True)
class CacheLayout(KernelLayout):
    """Queries on cached keys.

    `queries` are "BHD" (one query each), "BTHD", "BHTD" or "packed"; keys in the cache have the order "SG"
    (position, head) or "GS".
    """

    queries: str = "BTHD"
    keys: str = "SG"
    single: bool = False
    ragged: ClassVar[bool] = True

    @property
    def kind(self) -> str:
        return "cache"

    @property
    def ragged_queries(self) -> bool:
        """Only where the queries are packed."""
        return self.queries == "packed"

    @property
    def one_query(self) -> bool:
        return self.queries == "BHD" or self.single

    @property
    def description(self) -> str:
        shape = {"BHD": "(B, H, D)", "packed": "(total, H, D)"}.get(self.queries)
        shape = shape or f"({', '.join(self.queries.replace('T', '1') if self.single else self.queries)})"
        cache = "(B, S, G, D)" if self.keys == "SG" else "(B, G, S, D)"
        return f"queries {shape}, keys in a cache {cache}"

    def encode(self, question: Question) -> dict[str, Any]:
        lengths, key_lengths = question.all_lengths()
        k, v = (x if self.keys == "GS" else x.transpose(1, 2) for x in (question.k, question.v))
        arguments = self._encode_queries(question) | {"key": k, "value": v}
        arguments |= {"lengths": int32(key_lengths), "key starts": starts(key_lengths)}
        arguments |= {"longest query": max(lengths), "longest key": max(key_lengths), "batch": len(lengths)}
        return arguments | {"groups": question.k.shape[1]}

    def _encode_queries(self, question: Question) -> dict[str, Any]:
        lengths = question.all_lengths()[0]
        shaped = {
            "BHD": question.q[:, :, 0],
            "BTHD": question.q.transpose(1, 2),
            "BHTD": question.q,
            "packed": pack(question.q, lengths),
        }
        q = shaped[self.queries]
        return {
            "query": q,
            "query starts": starts(lengths),
            "out": q.new_empty(*q.shape[:-1], question.v.shape[-1]),
        }

    def decode(self, tensors: list[Tensor], question: Question) -> Answer:
        B, H, T, E = (*question.q.shape[:3], question.v.shape[-1])
        lengths = question.all_lengths()[0]
        shapes = {
            "BHD": (B, H, E),
            "BTHD": (B, T, H, E),
            "BHTD": (B, H, T, E),
            "packed": (sum(lengths), H, E),
        }
        output = find_shape(tensors, shapes[self.queries])
        lse = find_optional(tensors, output, (B, H, T), *([(B, H)] if T == 1 else []))
        whole = {
            "BHD": output[:, :, None] if self.queries == "BHD" else output,
            "BTHD": output.transpose(1, 2),
            "BHTD": output,
        }
        answer = unpack(output, lengths, question) if self.queries == "packed" else whole[self.queries]
        return Answer(answer, None, None if lse is None else lse.reshape(B, H, T))


@dataclass(frozen=True)
class PagedLayout(CacheLayout):
    """Queries on keys in pages, (pages, page size, G, D) or (pages, G, page size, D)."""

    optional: bool = False  # the page table may be absent: then the cache is contiguous

    @property
    def kind(self) -> str:
        return "paged or not" if self.optional else "paged"

    @property
    def description(self) -> str:
        queries = super().description.partition(", keys")[0]
        return f"{queries}, keys in pages found by {self.names['page table']}"

    def encode(self, question: Question) -> dict[str, Any]:
        arguments = super().encode(question)
        if question.page is None:  # the other arm: a contiguous cache
            return arguments
        lengths = question.all_lengths()[1]
        tables, k, v = _to_pages(question, lengths, question.page)
        if self.keys == "GS":
            k, v = k.transpose(1, 2), v.transpose(1, 2)  # (pages, G, page, D)
        arguments |= {"key": k, "value": v, "page table": tables, "page size": question.page}
        return arguments


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
