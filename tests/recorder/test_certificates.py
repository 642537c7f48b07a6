"""Weights are certified exactly if they, times the values, are the output that was used."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.recorder.certificates import output_comparison, row_products
from regard.recorder.certificates.certificate import (
    ShardEvidence,
    join_evidence,
    join_shard_evidence,
    sampled_rows,
)
from regard.recorder.certificates.output_comparison import examine
from regard.recorder.certificates.row_products import multiply_rows
from tests import strategies, truth
from tests.sampling import combine


@given(n=strategies.sizes(12), pick=st.data(), seed=st.integers(0, 2**20))
def test_the_right_output_is_certified_and_another_is_not(n, pick, seed):
    drawn = pick.draw(strategies.masks(n))
    x = strategies.tensors(n, seed, torch.float64)
    sinks = x.sinks if pick.draw(st.booleans()) else None
    softcap = pick.draw(st.sampled_from([None, 1.5]))
    right = truth.attention(
        x.q, x.k, x.v, drawn.allowed(), bias=drawn.score_bias(), softcap=softcap, sinks=sinks
    )
    m = regard.attention_map(x.q, x.k, mask=drawn.mask, softcap=softcap, sinks=sinks)
    evidence = examine(m, x.v, right.output, own_lse=True)
    assert evidence.certified
    assert evidence.difference < 1e-12
    sees = (m.lse > -torch.inf).any()  # a row that sees nothing may give anything
    off = examine(m, x.v, right.output + 0.5, own_lse=True)
    assert not sees or (not off.certified and off.difference > 0.4)


@pytest.mark.parametrize("sinks", [False, True])
def test_a_wrong_lse_is_not_certified(sinks):
    q, v = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4)
    options = {"mask": regard.causal, "sinks": torch.randn(2) if sinks else None}
    output, lse = regard.attend(q, q, v, return_lse=True, **options)
    assert examine(regard.attention_map(q, q, lse=lse, **options), v, output).certified
    wrong = examine(regard.attention_map(q, q, lse=lse + 1, **options), v, output)
    assert not wrong.certified
    assert wrong.difference > 0.1
    assert wrong.row_sums > 0.1


def test_the_tolerance_is_that_of_the_values_that_are_seen():
    """A hidden key's value, however large, makes no room for an error; nor does the range of float16."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 40, 8)
    mask = regard.causal & regard.padding(torch.arange(40)[None] < 39)
    v[:, :, 39] = 1e7
    right, wrong = (regard.attention_map(x, k, mask=mask) for x in (q, 1.01 * q))
    output = regard.attend(q, k, v, mask=mask)
    assert regard.certify(right, v, output).certified
    assert not regard.certify(wrong, v, output).certified
    small = (1e-5 * torch.randn(1, 2, 40, 8)).half()
    weights = right.to_dense()
    output = (weights[:, :, :39] @ small.float()).half()
    assert regard.certify(weights[:, :, :39], small, output).certified
    assert not regard.certify(weights[:, :, :39].flip(1), small, output).certified


def test_joined_evidence_keeps_what_is_wrong_with_either_part():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 8, 4)
    m, output = regard.attention_map(q, k), regard.attend(q, k, v)
    right = examine(m, v, output, weights=m.to_dense())
    without = examine(m, v, output)
    wrong = examine(m, v, output, weights=m.to_dense().flip(-1))
    unknown = dataclasses.replace(right, weights=math.nan)
    assert right.certified
    assert without.certified
    for bad in (wrong, unknown):
        for other in (right, without):
            for pair in ((bad, other), (other, bad)):
                assert not join_evidence(*pair, m.mask).certified
                shards = [ShardEvidence(0, (head,), None, x) for head, x in enumerate(pair)]
                assert not join_shard_evidence(shards).certified


@pytest.mark.parametrize(
    "mask", [regard.causal, regard.causal & regard.window(100), regard.padding([500, 640])]
)
@pytest.mark.parametrize(("G", "T"), [(4, 640), (2, 300), (1, 640)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_by_blocks_of_keys_are_the_products_of_whole_rows(mask, G, T, dtype, monkeypatch):
    monkeypatch.setitem(row_products.BLOCK_BYTES, "cpu", 1 << 17)
    monkeypatch.setattr(row_products, "KEYS_OF_SUM", 48)  # which does not divide the number of keys
    draw = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, h, n, 16, generator=draw).to(dtype) for h, n in ((4, T), (G, 640), (G, 640)))
    m, rows = regard.attention_map(q, k, mask=mask), sampled_rows(T)
    weights, values = m.tile(rows), v.float().repeat_interleave(4 // G, 1)
    for quick in (True, False):
        products = multiply_rows(m, rows, v, quick=quick)
        # A weight of half precision is off by 2⁻⁹, an eighth of what the dtype of the output allows.
        rounding = 2.0**-8 if quick and dtype == torch.bfloat16 else 1e-5
        sizes = weights @ values.abs()
        assert ((products.weighted - weights @ values).abs() <= rounding * sizes + 2e-5).all()
        torch.testing.assert_close(products.sums, weights.sum(-1))
        torch.testing.assert_close(products.sizes, sizes, rtol=rounding, atol=1e-4)


def test_calls_of_equal_sizes_are_judged_as_each_is_alone():
    """Layers are compared in one batch; a wrong one does not spoil the others, nor hide among them."""
    calls = []
    for seed in range(5):
        q, k, v = torch.randn(3, 2, 4, 9, 8, generator=torch.Generator().manual_seed(seed))
        output = regard.attend(q, k, v, mask=regard.causal)
        if seed == 1:
            output[1, 2, 7, 3] += 0.1
        if seed == 3:
            v[0, 0, 8] = torch.inf  # which the last row alone sees
            output = regard.attend(q, k, v, mask=regard.causal)
        m = regard.attention_map(q, k, mask=regard.causal)
        calls.append(output_comparison.ComparedCall(m, v, torch.arange(9), output))
    together = output_comparison.judge(calls)
    alone = [output_comparison.judge([call])[0] for call in calls]
    assert list(map(repr, together)) == list(map(repr, alone))  # NaN equals nothing
    assert [evidence.certified for evidence in together] == [True, False, True, False, True]


SETTINGS = [
    {},
    {"softcap": 3.0},
    {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
    {"mask": regard.causal & regard.window(7)},
    {"mask": regard.full, "scale": 40.0},
    {"mask": regard.padding([0, 25])},  # a sequence that sees nothing
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
PLANTED = {
    "no mask": {"mask": regard.full},
    "no diagonal": {"mask": regard.causal & ~regard.window(1)},
    "a window": {"mask": regard.causal & regard.window(39)},
    "another scale": {"scale": 0.41},
    "a softcap": {"softcap": 50.0},
    "a sink": {"sinks": torch.full((4,), -2.0)},
}


def examined(dtype, settings, planted):
    """The evidence of an attention with these settings, of whose map some are others."""
    q, k, v = (torch.randn(2, heads, 40, 8).to(dtype) for heads in (4, 2, 2))
    settings = {"mask": regard.causal, "scale": 0.4} | settings
    output, lse = regard.attend(q, k, v, **settings, return_lse=True)
    return examine(regard.attention_map(q, k, lse=lse, **settings | planted), v, output)


@pytest.mark.parametrize(
    ("settings", "planted", "dtype"),
    [
        *((settings, {}, dtype) for settings, dtype in combine(SETTINGS, DTYPES)),
        *(({}, planted, dtype) for planted in PLANTED.values() for dtype in DTYPES[:2]),
    ],
    ids=str,
)
def test_the_truth_is_certified_and_nothing_else(settings, planted, dtype):
    found = examined(dtype, settings, planted)
    assert found.certified is not bool(planted), str(found)
    off = "not certified: off this layer's own attention output by"
    assert (off if planted else "certified: weights times values are within") in str(found)


@pytest.mark.parametrize("softly_masked_rows", [False, True])
@pytest.mark.parametrize("lengths", [[0, 0], [5, 9]])
def test_nan_in_padding_is_no_fault(lengths, softly_masked_rows):
    q, k, v = (torch.randn(2, 2, 9, 8) for _ in range(3))
    mask, hidden = regard.padding(lengths), torch.arange(9) >= torch.tensor(lengths)[:, None]
    k[hidden[:, None].expand(-1, 2, -1)], v[hidden[:, None].expand(-1, 2, -1)] = torch.nan, torch.inf
    output = regard.attend(q, k, v, mask=mask)
    output[torch.tensor(lengths) == 0] = torch.nan  # rows that see nothing may give anything
    m = regard.attention_map(q, k, mask=mask)
    assert examine(m, v, output, softly_masked_rows=softly_masked_rows).certified


def test_soft_caps_and_sink_logits_are_shown():
    options = {"softcap": 30.0, "sinks": torch.zeros(4)}
    assert str(examined(torch.float32, options, {})).endswith("; causal, soft cap 30, sink logits")
    assert str(examined(torch.float32, {}, {})).endswith("; causal")
    m = regard.attention_map(torch.randn(2, 4, 40, 8), torch.randn(2, 2, 40, 8), **options)
    assert repr(m).startswith("AttentionMap(2×4×40×40, full, soft cap 30, sink logits, float32")


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
