"""`certify`: weights from anywhere against the output that they are said to have produced."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.recorder.certificates.output_comparison import examine
from tests import strategies, truth


@given(n=strategies.sizes(10), pick=st.data(), seed=st.integers(0, 2**20), dtype=strategies.dtypes)
def test_dense_weights_are_judged_as_their_map_is(n, pick, seed, dtype):
    drawn = pick.draw(strategies.masks(n))
    x = strategies.tensors(n, seed, dtype)
    right = truth.attention(x.q, x.k, x.v, drawn.allowed(), bias=drawn.score_bias())
    m, output = regard.attention_map(x.q, x.k, mask=drawn.mask), right.output.to(dtype)
    by_map = regard.certify(m, x.v, output, verify=True)
    assert by_map == examine(m, x.v, output, against="the output", max_rows=None)
    dense = regard.certify(right.weights.to(dtype), x.v, output, verify=True)
    if by_map.problem is None:  # values so similar that they do not tell
        assert by_map.certified
        assert dense.certified
    sees = bool((m.lse > -torch.inf).any())
    off = regard.certify(right.weights.to(dtype), x.v, output + 0.5, verify=True)
    assert not sees or not off.certified
    assert (dense.rows, dense.total_rows, dense.empty_rows) == (n.T, n.T, by_map.empty_rows)


def some_attention():
    """Weights (2, 4, 8, 8), values (2, 2, 8, 3) and their output (2, 4, 8, 3)."""
    scores, v = torch.randn(2, 4, 8, 8), torch.randn(2, 2, 8, 3)
    weights = scores.masked_fill(~regard.causal_mask(8), -torch.inf).softmax(-1)
    return weights, v, weights @ v.repeat_interleave(2, 1)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("the next layer's", lambda weights: torch.randn_like(weights).softmax(-1)),
        ("two heads swapped", lambda weights: weights[:, [1, 0, 2, 3]]),
        ("the mean over heads", lambda weights: weights.mean(1, keepdim=True).expand_as(weights)),
        ("softmax twice", lambda weights: weights.softmax(-1)),
        ("softmax over the queries", lambda weights: weights / weights.sum(-2, keepdim=True)),
        ("scaled by 1 %", lambda weights: weights * 1.01),
        ("NaN in one row", lambda weights: weights.index_fill(2, torch.tensor([3]), torch.nan)),
    ],
)
def test_weights_that_did_not_produce_the_output_are_not_certified(name, wrong):
    weights, v, output = some_attention()
    assert regard.certify(weights, v, output).certified
    assert not regard.certify(wrong(weights), v, output).certified, name


def test_equal_sums_do_not_hide_negative_weights():
    weights = torch.eye(4) * 2 - 1 / 3 * (1 - torch.eye(4))
    v = torch.randn(4, 3)
    evidence = regard.certify(weights, v, weights @ v)
    assert torch.allclose(weights.sum(-1), torch.ones(4), atol=1e-6)
    assert "negative" in str(evidence)
    assert not evidence.certified


def test_a_head_of_a_map_is_certified_by_itself():
    q, k, v = torch.randn(3, 2, 4, 8, 16)
    output, lse = regard.attend(q, k, v, mask=regard.causal, return_lse=True)
    m = regard.attention_map(q, k, mask=regard.causal, lse=lse)
    assert regard.certify(m[1, 2], v[1, 2], output[1, 2]).certified
    assert not regard.certify(m[1, 2], v[1, 2], output[1, 3]).certified
    assert regard.certify(m[0], v[0], output[0]).certified


def test_values_may_have_a_head_for_each_query_head_or_for_each_key_head():
    q, k, v = torch.randn(1, 4, 8, 16), torch.randn(1, 2, 8, 16), torch.randn(1, 2, 8, 16)
    output, m = regard.attend(q, k, v), regard.attention_map(q, k)
    for values in (v, v.repeat_interleave(2, 1)):
        assert regard.certify(m, values, output).certified
        assert regard.certify(m.to_dense(), values, output).certified


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": [[1.0]]}, r"weights: expected a torch.Tensor, got list"),
        ({"weights": torch.ones(3)}, r"weights: expected \(B, H, T, S\)"),
        ({"v": torch.ones(2, 2, 7, 3)}, r"v: expected \(2, 4, 8, E\), or fewer heads .*got \(2, 2, 7, 3\)"),
        ({"v": torch.ones(2, 3, 8, 3)}, r"v: expected \(2, 4, 8, E\)"),
        ({"output": torch.ones(2, 8, 4, 3)}, r"pass \.transpose\(-2, -3\)"),
        (
            {"output": torch.ones(2, 8, 12)},
            r"output: expected \(2, 4, 8, 3\), got \(2, 8, 12\): split its heads",
        ),
        ({"output": torch.ones(2, 8, 99)}, r"output: expected \(2, 4, 8, 3\), got \(2, 8, 99\)$"),
    ],
)
def test_what_does_not_fit_is_refused_with_how_to_mend_it(change, message):
    weights, v, output = some_attention()
    with pytest.raises(ValueError, match=message):
        regard.certify(**{"weights": weights, "v": v, "output": output} | change)


CLEARLY_OFF = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.1}
"""The error of a row, relative to its own Σ w |v|, that no rounding in a dtype explains."""


def with_a_large_value(dtype, size, seed):
    """Weights (1, 2, 12, 12) that hardly use key 0, values (1, 2, 12, 4) that are large there, the output."""
    draw = torch.Generator().manual_seed(seed)
    scores = 2.0 * torch.randn(1, 2, 12, 12, generator=draw, dtype=torch.float64)
    scores[..., 0] = -14.0
    v = torch.randn(1, 2, 12, 4, generator=draw, dtype=torch.float64)
    v[:, :, 0] = size
    weights, v = scores.softmax(-1).to(dtype), v.to(dtype)
    return weights, v, (weights.double() @ v.double()).to(dtype)


@given(
    dtype=st.sampled_from(list(CLEARLY_OFF)),
    size=st.floats(0.01, 6e4),
    seed=st.integers(0, 2**20),
    row=st.integers(0, 11),
    order=st.permutations(range(12)),
    share=st.floats(0.001, 1.0),
)
def test_a_row_is_held_to_its_own_values(dtype, size, seed, row, order, share):
    """Exact weights are always certified, and never those of which one row is clearly off."""
    weights, v, output = with_a_large_value(dtype, size, seed)
    assert regard.certify(weights, v, output).certified
    other = weights.clone()
    other[:, :, row] = torch.lerp(other[:, :, row].double(), other[:, :, row][..., order].double(), share)
    off = (other.double() @ v.double() - output.double()).abs()
    room = CLEARLY_OFF[dtype] * (other.double() @ v.double().abs())
    if dtype == torch.float16:  # it has no weights below 2^-24
        room += 2.0**-20 * v.double().abs().sum(2, keepdim=True)
    if bool((off > room).any()):
        assert not regard.certify(other, v, output).certified
