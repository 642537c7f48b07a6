"""Weights are as near to float64 as eager attention's at any size of the scores, whichever way one looks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from benchmarks.exactness import DRAWS, MAGNITUDES, OPTIONS, draw, ratios


@given(
    kind=st.sampled_from(sorted(DRAWS)),
    option=st.sampled_from(OPTIONS),
    magnitude=st.one_of(st.sampled_from(MAGNITUDES), st.floats(2.0, 16.0)),  # limits of float32 lie there
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    D=st.sampled_from([1, 8, 64, 128]),
    T=st.sampled_from([54, 60, 75]),
    seed=st.integers(0, 2**20),
)
def test_whatever_a_map_gives_errs_less_than_three_times_as_much_as_eager_attention(
    kind: str, option: str, magnitude: float, dtype: torch.dtype, D: int, T: int, seed: int
) -> None:
    if dtype == torch.float16 and magnitude > 1e6:
        magnitude = 1e6  # q and k have to be finite
    torch.manual_seed(seed)
    found = ratios(kind, option, magnitude, dtype, T, 60, D)
    # Of two ways to add up a dot product, either errs more by chance.
    assert max(found.values()) < 3, found


def test_only_heads_with_large_scores_are_computed_in_float64() -> None:
    q, k = draw("unlike heads", 1e4, 20, 30, 8, torch.float32)
    assert regard.attention_map(q, k).precise.large.tolist() == [[False, True, True, True]]
    q, k = torch.randn(1, 12, 2048, 64), torch.randn(1, 12, 2048, 64)
    for mask in (None, regard.causal, regard.padding([2000]), regard.causal & regard.window(300)):
        assert not regard.attention_map(q, k, mask=mask).precise.large.any()


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("scores", [1.0, 1e4])
def test_a_wrong_lse_shows(scores: float, sinks: bool) -> None:
    """Rounding is mended, a mistake is not."""
    torch.manual_seed(1)
    q, k = draw("normal", scores, 20, 30, 8, torch.float32)
    given = {"mask": regard.causal, "sinks": scores * torch.randn(4) if sinks else None}
    right = regard.attention_map(q, k, **given)
    wrong = regard.attention_map(q, k, lse=right.lse + 0.25, **given)
    for look in (
        lambda m: m.to_dense(),
        lambda m: m.tile(torch.arange(20)),
        lambda m: m.pool(4, 5),
        lambda m: m.received(),
        lambda m: m @ torch.ones(1, 2, 30, 1),
        lambda m: m.statistics().distance,
    ):
        ratio = look(wrong).double().sum() / look(right).double().sum()
        assert abs(float(ratio) - torch.tensor(-0.25).exp()) < 1e-3


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("T", [4, 600])
def test_a_bias_that_is_no_number_makes_nan_of_its_row_as_in_eager_attention(bad: float, T: int) -> None:
    q, k, v = (torch.randn(1, 2, T, 4) for _ in range(3))
    bias = torch.randn(T, T)
    bias[1, 0], bias[2, 3] = bad, bad  # the latter is hidden
    mask = regard.causal & regard.tensor_mask(bias)
    m = regard.attention_map(q, k, mask=mask)
    found = [m.to_dense(), m.tile(slice(None)), m @ v, m.topk(1).values, m.pool(T, 1)]
    found += [x.unsqueeze(-1) for x in (m.entropy(), m.distance(), m.mass(regard.prefix(T)), m.lse)]
    for name in ("steps", "tiled"):
        output, lse = regard.attend(q, k, v, mask=mask, return_lse=True, backend=name)
        found += [output, lse.unsqueeze(-1)]
    for x in found:
        assert x.isnan().any(-1)[0, 0].nonzero().tolist() == [[1]]
    assert m.to_dense()[..., 1, :2].isnan().all()
