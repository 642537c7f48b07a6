"""Overviews, regions and summaries at the sizes that tiles really have, in the dtypes that models have."""

from typing import Any

import pytest
import torch

import regard
from tests import truth
from tests.sampling import combine, share

T, S = 1300, 1500
MASKS = {
    "full": regard.full,
    "causal": regard.causal,
    "window": regard.causal & regard.window(200),
    "prefix": regard.causal | regard.prefix(700),
    "documents": regard.causal & regard.documents(torch.arange(S) // 400),
    "alibi": regard.causal & regard.alibi(2),
    "not": ~regard.causal,
}


def _all(A: torch.Tensor, scores: torch.Tensor, *counts: int) -> tuple[torch.Tensor, ...]:
    return (*truth.cells(A, *counts), *truth.statistics(A), scores.amax(-1))


@pytest.mark.parametrize(("name", "dtype"), combine(share(MASKS, 2, turn=1), [torch.float32, torch.bfloat16]))
def test_a_summary_errs_no_more_than_eager_attention(name: str, dtype: torch.dtype) -> None:
    q, k = torch.randn(1, 2, T, 16).to(dtype), torch.randn(1, 1, S, 16).to(dtype)
    mask = MASKS[name]
    right = regard.attention_map(q.double(), k.double(), mask=mask).to_dense()
    exact = (q.double() * 0.25) @ k.double().mT
    scores = ((q.float() * 0.25) @ k.float().mT).to(dtype)  # as eager attention rounds them
    if (bias := mask.bias(range(T), range(S), (1, 2, T, S))) is not None:
        scores, exact = (scores + bias).to(dtype), exact + bias
    hidden = ~mask.tile(range(T), range(S), (1, 2, T, S))
    scores, exact = scores.masked_fill(hidden, -torch.inf), exact.masked_fill(hidden, -torch.inf)
    theirs = scores.softmax(-1).nan_to_num(0.0).float()
    found = regard.attention_map(q, k, mask=mask).summary(37, 256)
    for name, ours, eager, expected in zip(
        found._fields, found, _all(theirs, scores, 37, 256), _all(right, exact, 37, 256), strict=True
    ):
        empty = expected == -torch.inf  # the largest score of a row that sees no key
        assert torch.equal(ours == -torch.inf, empty)
        ours, eager, expected = (x.masked_fill(empty, 0.0) for x in (ours, eager, expected))
        unit = torch.finfo(torch.float32).eps * expected.abs().max().item()
        assert truth.error(ours, expected) <= 2 * truth.error(eager, expected) + unit, name


REGIONS = [(slice(0, 600), slice(900, S)), (slice(411, T), slice(0, 1111)), (slice(700, 711), slice(3, 20))]


@pytest.mark.parametrize(("name", "region"), combine(share(MASKS, 2), REGIONS))
def test_a_region_is_the_same_part_of_the_dense_matrix(name: str, region: Any) -> None:
    q, k = torch.randn(1, 2, T, 8, dtype=torch.float64), torch.randn(1, 2, S, 8, dtype=torch.float64)
    m = regard.attention_map(q, k, mask=MASKS[name], softcap=3.0, sinks=torch.randn(2, dtype=torch.float64))
    A = m.to_dense()[:, :, region[0], region[1]]
    for rows, cols in ((1, 1), (11, 17), (min(A.shape[2], 256), min(A.shape[3], 256))):
        for found, expected in zip(
            m.pool(rows, cols, "both", region=region), truth.cells(A, rows, cols), strict=True
        ):
            assert truth.error(found, expected) < 1e-12
