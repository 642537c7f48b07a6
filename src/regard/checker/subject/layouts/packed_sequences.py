"""Packed sequences: (total, H, D) with the cumulative lengths `cu_seqlens`, as in FlashAttention's varlen."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.checker.oracle.answer import Answer
from regard.checker.oracle.question import Question
from regard.checker.subject.layouts.layout import KernelLayout, find_optional, find_shape, int32


@dataclass(frozen=True)
class PackedLayout(KernelLayout):
    """Sequences one after the other, without padding."""

    ragged: ClassVar[bool] = True

    @property
    def kind(self) -> str:
        return "packed"

    @property
    def square(self) -> bool:
        """Whether one `cu_seqlens` holds for queries and keys."""
        return "key starts" not in self.names

    @property
    def description(self) -> str:
        return f"packed sequences (total, H, D) with {self.names['query starts']}"

    def encode(self, question: Question) -> dict[str, Any]:
        queries, keys = question.all_lengths()
        q, k, v = pack(question.q, queries), pack(question.k, keys), pack(question.v, keys)
        qkv = torch.stack([q, k, v], 1) if "qkv" in self.names else None  # (total, 3, H, D)
        kv = torch.stack([k, v], 1) if "kv" in self.names else None
        arguments: dict[str, Any] = {"query": q, "key": k, "value": v, "qkv": qkv, "kv": kv}
        arguments |= {"query starts": starts(queries), "key starts": starts(keys)}
        arguments |= {"longest query": max(queries), "longest key": max(keys), "batch": len(queries)}
        return arguments | {"out": q.new_empty(*q.shape[:2], v.shape[-1])}

    def decode(self, tensors: list[Tensor], question: Question) -> Answer:
        queries = question.all_lengths()[0]
        total, H, E = sum(queries), question.q.shape[1], question.v.shape[-1]
        output = find_shape(tensors, (total, H, E))
        # flash-attn returns (H, total), its earlier versions (B, H, longest), and FlashInfer (total, H).
        lse = find_optional(tensors, output, (H, total), (total, H), (len(queries), H, max(queries)))
        if lse is not None and lse.ndim == 2:
            by_token = lse.T if lse.shape == (H, total) else lse
            lse = unpack(by_token[..., None], queries, question)[..., 0]
        return Answer(unpack(output, queries, question), None, lse)


def starts(lengths: tuple[int, ...]) -> Tensor:
    """Return where every sequence starts, and where the last one ends."""
    return int32([0, *accumulate(lengths)])


def pack(x: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Pack (B, H, T, D) into (total, H, D)."""
    return torch.cat([x[b, :, :n].transpose(0, 1) for b, n in enumerate(lengths)])


def unpack(x: Tensor, lengths: tuple[int, ...], question: Question) -> Tensor:
    """Unpack (total, H, E) into (B, H, T, E), with zeros beyond a sequence's end."""
    T = question.q.shape[2]
    rows = [
        torch.nn.functional.pad(part, (0, 0, 0, 0, 0, T - len(part)))
        for part in torch.split(x, list(lengths))
    ]
    return torch.stack(rows).transpose(1, 2)
