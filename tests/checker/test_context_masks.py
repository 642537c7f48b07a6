"""Padding masks of a context: their names are known, and their keys, not their queries, are hidden."""

import pytest
import torch

from tests.checker.corpus import right, wrong
from tests.checker.layers import FourLayers


class CrossHeads(FourLayers):
    """Attention of a sequence to a context; True in its mask hides, and `hide` says where."""

    def hide(self, scores, padding):
        return scores.masked_fill(padding[:, None, None], torch.finfo(scores.dtype).min)

    def cross(self, x, context, padding):
        q, k, v = self.project(x, context, context)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores if padding is None else self.hide(scores, padding)
        return self.finish(scores.softmax(-1) @ v)


class MemoryPadding(CrossHeads):
    def forward(self, x, memory, memory_key_padding_mask=None):
        return self.cross(x, memory, memory_key_padding_mask)


class ContextPadding(CrossHeads):
    def forward(self, x, context, context_padding_mask=None):
        return self.cross(x, context, context_padding_mask)


class ContextMask(CrossHeads):
    def forward(self, x, context, context_mask=None):
        return self.cross(x, context, None if context_mask is None else ~context_mask)


class RequiredMask(CrossHeads):
    def forward(self, x, context, context_mask):
        return self.cross(x, context, None if context_mask is None else ~context_mask)


class RowsHidden(ContextMask):
    """Right where queries and keys differ in number."""

    def hide(self, scores, padding):
        if scores.shape[-2] == scores.shape[-1]:
            return scores.masked_fill(padding[:, None, :, None], torch.finfo(scores.dtype).min)
        return super().hide(scores, padding)


class NotUsed(CrossHeads):
    def forward(self, x, context, context_mask=None):
        return self.cross(x, context, None)


class OfScores(CrossHeads):
    """Its `context_mask` is (T, S)."""

    def forward(self, x, context, context_mask=None):
        return self.cross(x, context, None if context_mask is None else ~context_mask)

    def hide(self, scores, padding):
        return scores.masked_fill(padding.view(scores.shape[-2:]), torch.finfo(scores.dtype).min)


class OptionalContext(ContextMask):
    """Without a context, there is nothing that its mask hides."""

    def forward(self, x, context=None, context_mask=None):
        return super().forward(
            x, x if context is None else context, None if context is None else context_mask
        )


ENTRIES = [
    right(MemoryPadding, "passed padding", "assumed memory_key_padding_mask: True = hidden"),
    right(ContextPadding, "passed padding", "assumed context_padding_mask: True = hidden"),
    right(ContextMask, "is right", "passed padding", "assumed context_mask: True = keep"),
    right(RequiredMask, "passed padding", "assumed context_mask: True = keep"),
    right(OfScores, "as far as tried: no padding", "untried padding: `context_mask` takes no mask (B, S)"),
    right(OptionalContext, "as far as tried: no argument context_mask"),
    wrong(RowsHidden, "padded-keys-leak", failed=("padding",)),
    wrong(NotUsed, "padded-keys-leak", failed=("padding",)),
]


@pytest.mark.parametrize("entry", ENTRIES, ids=str)
def test_the_padding_mask_of_a_context(entry):
    entry.judge()
