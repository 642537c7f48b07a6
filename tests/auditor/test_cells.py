"""Cells that one mask shows and another hides: counted as dense masks count them, and at any length."""

from __future__ import annotations

import resource
import sys

import hypothesis
import pytest
import torch
from hypothesis import strategies

import regard
from regard.attention.masks.base import Mask
from regard.auditor import cells as module
from regard.auditor.cells import NO_CELLS, Cell, cells_beyond

B, H = 2, 3


def _masks(T: int) -> list[Mask]:
    ids = torch.randint(0, 3, (B, T)).sort(1).values
    real = torch.arange(T) < torch.randint(0, T + 1, (B, 1))
    return [
        regard.full,
        regard.causal,
        regard.window(3),
        regard.causal & regard.window(5),
        regard.causal & regard.documents(ids),
        regard.causal & regard.padding(real),
        regard.causal | regard.prefix(min(4, T)),
        regard.chunks(4) & regard.causal,
        ~regard.window(2),
        regard.tensor_mask(torch.rand(B, H, T, T) > 0.5),
        regard.tensor_mask(torch.rand(B, 1, T, T) > 0.9),
        regard.causal & regard.alibi(H),
    ]


def _dense(mask: Mask, T: int) -> torch.Tensor:
    return mask.tile(range(T), range(T), (B, H, T, T)).expand(B, H, T, T)


@hypothesis.given(
    strategies.integers(0, 2**31), strategies.integers(1, 40), strategies.sampled_from([4, 16, 512])
)
def test_cells_are_counted_as_in_dense_masks(seed: int, T: int, block: int) -> None:
    torch.manual_seed(seed)
    masks = _masks(T)
    mask, limit = (masks[int(i)] for i in torch.randint(0, len(masks), (2,)))
    rows = torch.rand(B, T) > 0.3 if seed % 2 else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", block)
        found = cells_beyond(mask, limit, (B, H, T, T), rows)
    shown = (_dense(mask, T) & ~_dense(limit, T)).any(1)  # (B, T, T): to some head
    if rows is not None:
        shown &= rows[..., None]
    assert found.number == int(shown.sum())
    assert found.first == (Cell(*shown.nonzero()[0].tolist()) if found.number else None)


def test_long_texts_need_no_square_matrix() -> None:
    T = 32_768
    ids = torch.arange(T)[None] // 5000
    right = regard.causal & regard.documents(ids) & regard.window(1024)
    wrong = regard.causal & regard.documents(ids) & regard.window(1025)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert cells_beyond(right, right, (1, 8, T, T)) == NO_CELLS
    found = cells_beyond(wrong, right, (1, 8, T, T))
    # Each document of 5,000 tokens has 5,000 − 1,024 queries with one key more; the last is shorter.
    full_documents, last = divmod(T, 5000)
    assert found.number == full_documents * (5000 - 1024) + max(0, last - 1024)
    assert found.first == Cell(0, 1024, 0)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    kilobytes = 1024 if sys.platform == "darwin" else 1
    assert grown / kilobytes < 500_000  # T×S would be 1 GB
