"""Attention continued with a cache: the correct way, and those that contain a mistake.

A `CacheVariant` with every field at its default is correct. Each field is one decision that authors get
wrong; `answer` runs a variant on a sequence that arrives in pieces. The cache is a row of slots, which are
zero before they are written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import CORRECT, Rule, past
from regard.checker.oracle.wiring import Wiring

Position = Literal["right", "restart", "behind", "ahead"]
POSITIONS: dict[Position, Callable[[int], int]] = {
    "right": lambda start: start,
    "restart": lambda start: 0,
    "behind": lambda start: max(start - 1, 0),
    "ahead": lambda start: start + 1 if start else 0,
}
SlotsRead = Literal[
    "written",
    "all",
    "none",
    "before",  # those before the new keys
    "one more",
    "last piece",
    "not the first",
    "not the last",
    "not the last of a piece",
    "not the new",
]


@dataclass(frozen=True)
class CacheVariant:
    """The decisions of one implementation of a cache. The first word of every `Literal` is the right one."""

    write: Literal["start", "zero", "next", "previous"] = "start"  # the slot of the first new key
    read: SlotsRead = "written"
    # Where the new keys come from: the slots, or beside them.
    new: Literal["slots", "appended", "in front"] = "slots"
    causal: Rule = past
    first_causal: Rule = past  # of the first piece, which has no cache
    query_positions: Position = "right"
    key_positions: Position = "right"
    # "read": keys are rotated again when read; "stored": and kept; "cached": the old ones alone.
    rotated_again: Literal["", "read", "stored", "cached", "cached, stored"] = ""
    cached: tuple[int, int] = (1, 2)  # which of (query, key, value, zeros) is cached as key and as value
    swapped: bool = False  # whether each step takes the cached keys for values, and the values for keys
    slots: int = 0  # the length of the cache, at least

    def answer(self, question: Question, wiring: Wiring, cut: tuple[int, ...]) -> Tensor:
        """Return the output for a sequence in pieces of these sizes.

        `question` is self-attention of the whole sequence. A shape that does not fit raises an error.
        """
        x = question.q
        B, T = x.shape[0], x.shape[1]
        keys = values = None
        pieces: list[Tensor] = []
        start = 0
        for size in cut:
            piece = replace(question, q=(new := x[:, start : start + size]), k=new, v=new)
            starts = POSITIONS[self.query_positions](start), POSITIONS[self.key_positions](start)
            q, k, v = wiring.position(*wiring.project(piece), starts=starts)
            stored = [(q, k, v, torch.zeros_like(v))[role] for role in self.cached]
            if keys is None or values is None:
                # Some mistakes write or read one slot beyond the end.
                length = max(self.slots, T + 2)
                keys, values = (t.new_zeros(B, t.shape[1], length, t.shape[3]) for t in stored)
            if self.swapped and start:
                keys, values = values, keys
            old_keys, old_values = keys.clone(), values.clone()
            at = {"start": start, "zero": 0, "next": start + 1, "previous": max(start - 1, 0)}[self.write]
            keys[:, :, at : at + size], values[:, :, at : at + size] = stored
            sizes = cut[: len(pieces)]
            seen_keys = self._read(keys, old_keys, k, sizes)
            seen_values = self._read(values, old_values, v, sizes)
            if self.rotated_again and start and wiring.rotate is not None:
                end = start if "cached" in self.rotated_again else start + size
                turned = wiring.rotate(seen_keys[:, :, :end], 0)
                seen_keys = torch.cat([turned, seen_keys[:, :, end:]], 2)
                if "stored" in self.rotated_again:
                    keys[:, :, :end] = turned
            pieces.append(self._attend(piece, wiring, (q, seen_keys, seen_values), first=start == 0))
            start += size
        return torch.cat(pieces, 1)

    def _read(self, slots: Tensor, before: Tensor, new: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """Return the keys (or values) that the queries see.

        Arguments:
            slots: the cache (B, G, L, D) after the new keys were written; `before` is the cache before.
            new: the new keys (B, G, T, D).
            sizes: the sizes of the earlier pieces.
        """
        start = sum(sizes)
        end = start + new.shape[2]
        whole: dict[SlotsRead, Tensor] = {
            "all": slots,
            "one more": slots[:, :, : end + 1 if start else end],
            "not the new": before[:, :, :start] if start else new,
        }
        if self.read in whole:
            return whole[self.read]
        if self.new == "in front" and sizes:  # the latest piece first
            return torch.cat([new, *reversed(torch.split(before[:, :, :start], list(sizes), 2))], 2)
        if self.new != "appended" and self.read == "written":
            return slots[:, :, :end]
        cached = slots[:, :, :start]
        pieces = torch.split(cached, list(sizes), 2) if sizes else (cached,)
        kept: dict[SlotsRead, Tensor] = {
            "written": cached,
            "none": slots[:, :, :0],
            "before": before[:, :, :start],
            "last piece": before[:, :, start - sizes[-1] if sizes else 0 : start],
            "not the first": slots[:, :, 1:start],
            "not the last": slots[:, :, : max(start - 1, 0)],
            "not the last of a piece": torch.cat([piece[:, :, :-1] for piece in pieces], 2),
        }
        return torch.cat([kept[self.read], new], 2)

    def _attend(
        self, piece: Question, wiring: Wiring, projected: tuple[Tensor, Tensor, Tensor], *, first: bool
    ) -> Tensor:
        """Return the output of attention on queries, keys and values that have their positions already."""
        plain = replace(wiring, rotate=None, query_norm=None, key_norm=None)
        rule = self.first_causal if first else self.causal
        return replace(CORRECT, causal=rule).answer(piece, plain, projected).output


CORRECT_CACHE = CacheVariant()
