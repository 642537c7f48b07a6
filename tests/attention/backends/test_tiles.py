"""Exponentials of a tile: as exact as PyTorch's, and 0 where they would not be normal numbers."""

import pytest
import torch

import regard
from regard.attention.backends.tiles import exponentials, least_log


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("in_place", [False, True])
def test_exponentials(dtype: torch.dtype, in_place: bool) -> None:
    least = least_log(dtype)
    logs = torch.linspace(1.5 * least, 3.0, 999, dtype=dtype)
    logs[::7] = -torch.inf
    right = logs.exp()
    found = exponentials(logs, out=logs) if in_place else exponentials(logs, out=torch.empty_like(logs))
    normal = right >= 3 * torch.finfo(dtype).tiny
    assert torch.equal(found[normal], right[normal])
    assert normal.any()
    assert (found[right < torch.finfo(dtype).tiny] == 0).all()


def test_not_a_number_stays_one() -> None:
    logs = torch.tensor([0.0, torch.nan, -torch.inf, torch.inf])
    found = exponentials(logs, out=torch.empty_like(logs))
    assert torch.equal(found.nan_to_num(nan=-1.0, posinf=7.0), torch.tensor([1.0, -1.0, 0.0, 7.0]))


@pytest.mark.parametrize("size", [1.0, 40.0])
@pytest.mark.parametrize("mask", [regard.causal, regard.window(9, ahead=2)], ids=str)
def test_overviews_of_small_and_of_vanishing_weights(
    size: float, mask: regard.attention.masks.base.Mask
) -> None:
    """Scores of a size of 40 and more have weights that are not normal numbers."""
    q, k = (torch.randn(1, 2, 1100, 8, generator=torch.Generator().manual_seed(n)) for n in (1, 2))
    m = regard.attention_map(q * size, k, mask=mask)
    dense = m.to_dense().double()
    summary = m.summary(11, 11)
    cells = dense.view(1, 2, 11, 100, 11, 100)
    assert torch.allclose(summary.mass.double(), cells.sum(-1).mean(3), atol=1e-5)
    assert torch.allclose(summary.max.double(), cells.amax((3, 5)), atol=1e-5)
    assert torch.allclose(summary.received.double(), dense.sum(2), atol=1e-3)
    entropy = torch.special.entr(dense).sum(-1)
    assert torch.allclose(summary.entropy.double(), entropy, atol=1e-4)
