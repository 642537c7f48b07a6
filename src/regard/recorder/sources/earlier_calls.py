"""Tells which attention calls of one module belong together, by the memory of their queries and keys.

A module may attend in several calls: in windows of its tokens, in chunks of its queries, or with the weights
of an earlier call applied to other values. Tensors that were cut from one lie in its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.masks.base import Mask
from regard.recorder.attention_call import AttentionCall, Part
from regard.recorder.call_receiver import Slot
from regard.recorder.map_preparation import ScoreSettings, mask_write_counts, write_count

PARTS = "its module attends in several calls, each with some of its queries or keys"
"""Why the axes of a call that could not be joined with the first are not those of the tokens."""


@dataclass(eq=False)
class EarlierCall:
    """What is remembered of an attention call until its module is called again."""

    q: Tensor
    k: Tensor
    mask: Mask
    scores: ScoreSettings
    write_counts: tuple[int | None, ...]
    """How often q, k and the tensors of the mask had been written to in place."""
    is_part: bool = False
    """Whether it belongs to the calls before it."""
    slot: Slot = ("", 0)
    """Where the receiver keeps it."""

    @classmethod
    def of(cls, call: AttentionCall) -> EarlierCall:
        """Remember a call."""
        scores, counts = ScoreSettings(call), _write_counts(call.q, call.k, call.mask)
        return cls(call.q, call.k, call.mask, scores, counts)

    @property
    def unchanged(self) -> bool:
        """Whether q, k and the mask have certainly not been written to since."""
        now = _write_counts(self.q, self.k, self.mask)
        # In inference mode PyTorch counts no writes, so that nothing is certain.
        return None not in self.write_counts and self.write_counts == now

    def same_weights(self, earlier: EarlierCall) -> bool:
        """Whether an earlier call had the same weights, whatever its values were."""
        return (
            earlier.unchanged
            and self.mask is earlier.mask
            and self.scores == earlier.scores
            and torch.equal(self.q, earlier.q)
            and torch.equal(self.k, earlier.k)
        )

    def tokens_after(self, first: EarlierCall) -> tuple[int | None, int | None]:
        """By how many tokens its queries and its keys begin after those of the first call."""
        return _tokens_between(self.q, first.q), _tokens_between(self.k, first.k)

    def is_cut_like(self, first: EarlierCall) -> bool:
        """Whether two calls of one module have other tokens of the same queries or keys."""
        pairs = zip(self.tokens_after(first), (self.q, self.k), strict=True)
        return any(n is not None and abs(n) >= x.shape[2] > 0 for n, x in pairs)

    def part_of(self, calls: Sequence[EarlierCall]) -> Part | None:
        """Return how a call belongs to the module's earlier ones, or None if it does not.

        Some vision towers cut their tokens into images or windows, and some code its queries into chunks.
        """
        first = calls[0]
        heads = (self.q.shape[:2], self.k.shape[:2]) == (first.q.shape[:2], first.k.shape[:2])
        if not heads or self.scores != first.scores:
            return None
        T, S, before = self.q.shape[2], self.k.shape[2], sum(call.q.shape[2] for call in calls)
        queries, keys = self.tokens_after(first)
        if queries != before:
            return None
        # Tokens that attend to themselves and to no others, at the same places of both tensors: windows that
        # run in another order, or attend to other windows, are maps of their own.
        is_aligned = keys == before and _first_token(first.q) == _first_token(first.k)
        if is_aligned and all(call.q.shape[2] == call.k.shape[2] for call in (*calls, self)):
            return "beside"
        # Causal code hands each chunk the keys up to its own end, other code all keys. As many queries as
        # keys are no chunk: that is attention once more.
        is_chunk = S == before + T == calls[-1].k.shape[2] + T or T < S == first.k.shape[2]
        return "rows" if keys == 0 and is_chunk else None


def _write_counts(q: Tensor, k: Tensor, mask: Mask) -> tuple[int | None, ...]:
    return write_count(q), write_count(k), *mask_write_counts(mask)


def _tokens_between(x: Tensor, first: Tensor) -> int | None:
    """By how many tokens x begins after a tensor (B, H, T, D); None if they are not cut so from one."""
    is_same = x.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
    if not is_same or (strides := _strides(x, first)) != _strides(first, x):
        return None
    # An expanded axis has stride 0.
    step = max(strides[2], 1)
    apart, rest = divmod(int(x.storage_offset()) - int(first.storage_offset()), step)
    # A stride larger than a token's is that of a head or a text, and spans all the tokens.
    tokens = min((n // step for n in strides[:2] if n > step), default=abs(apart) + 1)
    return None if rest or abs(apart) >= (tokens if strides[2] else 1) else apart


def _first_token(x: Tensor) -> int:
    """The number of the first token of x (B, H, T, D) in memory, where a token holds its channels."""
    return int(x.storage_offset()) // max(x.stride(2), 1)


def _strides(x: Tensor, other: Tensor) -> tuple[int, ...]:
    """The strides of x; an axis of length 1 may have any, and has that of another tensor."""
    lengths = zip(x.shape, x.stride(), other.stride(), strict=True)
    return tuple(own if n > 1 else others for n, own, others in lengths)
