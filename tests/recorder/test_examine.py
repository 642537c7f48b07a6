"""`examine`: a map is certified exactly if its weights times the values are the output that was used."""

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


@pytest.mark.parametrize("softly_masked_rows", [False, True])
def test_nan_in_values_that_no_row_sees_is_no_fault(softly_masked_rows):
    q, k = torch.randn(2, 1, 2, 5, 8).unbind()
    m = regard.attention_map(q, k, mask=regard.padding(torch.zeros(1, 5, dtype=torch.bool)))
    v = torch.full((1, 2, 5, 8), torch.nan)
    assert examine(m, v, v, softly_masked_rows=softly_masked_rows).certified
