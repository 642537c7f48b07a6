"""How exact weights are at any size of scores, and maps from the lse of other kernels."""

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

import regard
from benchmarks.exactness import DRAWS, MAGNITUDES, OPTIONS, draw, ratios
from tests import truth
from tests.sampling import combine, share


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
    kind, option, magnitude, dtype, D, T, seed
):
    if dtype == torch.float16 and magnitude > 1e6:
        magnitude = 1e6  # q and k have to be finite
    torch.manual_seed(seed)
    found = ratios(kind, option, magnitude, dtype, T, 60, D)
    # Of two ways to add up a dot product, either errs more by chance.
    assert max(found.values()) < 3, found


def test_only_heads_with_large_scores_are_computed_in_float64():
    q, k = draw("unlike heads", 1e4, 20, 30, 8, torch.float32)
    assert regard.attention_map(q, k).precise.large.tolist() == [[False, True, True, True]]
    q, k = torch.randn(1, 12, 2048, 64), torch.randn(1, 12, 2048, 64)
    for mask in (None, regard.causal, regard.padding([2000]), regard.causal & regard.window(300)):
        assert not regard.attention_map(q, k, mask=mask).precise.large.any()


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("scores", [1.0, 1e4])
def test_a_wrong_lse_shows(scores, sinks):
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
def test_a_bias_that_is_no_number_makes_nan_of_its_row_as_in_eager_attention(bad, T):
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


def _all(A, scores, *counts):
    return (*truth.cells(A, *counts), *truth.statistics(A), scores.amax(-1))


@pytest.mark.parametrize(("name", "dtype"), combine(share(MASKS, 2, turn=1), [torch.float32, torch.bfloat16]))
def test_a_summary_errs_no_more_than_eager_attention(name, dtype):
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
def test_a_region_is_the_same_part_of_the_dense_matrix(name, region):
    q, k = torch.randn(1, 2, T, 8, dtype=torch.float64), torch.randn(1, 2, S, 8, dtype=torch.float64)
    m = regard.attention_map(q, k, mask=MASKS[name], softcap=3.0, sinks=torch.randn(2, dtype=torch.float64))
    A = m.to_dense()[:, :, region[0], region[1]]
    for rows, cols in ((1, 1), (11, 17), (min(A.shape[2], 256), min(A.shape[3], 256))):
        for found, expected in zip(
            m.pool(rows, cols, "both", region=region), truth.cells(A, rows, cols), strict=True
        ):
            assert truth.error(found, expected) < 1e-12


aten = torch.ops.aten


def tensors(dtype=torch.float32):
    q, k, v = torch.randn(1, 4, 32, 16), torch.randn(1, 2, 32, 16), torch.randn(1, 2, 32, 16)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def test_flex_attention_with_grouped_heads_and_a_window():
    q, k, v = tensors()
    block_mask = create_block_mask(
        lambda b, h, i, j: (i >= j) & (i - j < 8), None, None, 32, 32, device="cpu"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # uncompiled, it warns that it builds the matrix
        output, aux = flex_attention(
            q, k, v, block_mask=block_mask, enable_gqa=True, return_aux=AuxRequest(lse=True)
        )
    m = regard.attention_map(q, k, mask=regard.causal & regard.window(8), lse=aux.lse)
    assert regard.certify(m, v, output, verify=True).certified
    wrong = regard.attention_map(q, k, mask=regard.causal & regard.window(9), lse=aux.lse)
    assert not regard.certify(wrong, v, output, verify=True).certified


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_pytorchs_flash_kernel_on_a_cpu(dtype):
    q, k, v = tensors(dtype)
    output, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
    m = regard.attention_map(q, k, mask=regard.causal, lse=lse)
    assert regard.certify(m, v, output, verify=True).certified
    base_2 = regard.attention_map(q, k, mask=regard.causal, lse=lse / torch.tensor(2.0).log())
    assert not regard.certify(base_2, v, output, verify=True).certified


def test_the_last_dimension_of_one_that_cudnn_has():
    q, k, v = tensors()
    output, lse = regard.attend(q, k, v, return_lse=True)
    assert regard.certify(regard.attention_map(q, k, lse=lse[..., None]), v, output).certified


@pytest.mark.parametrize("mark", [torch.inf, 0.0, -torch.inf])
def test_rows_that_see_no_key_however_a_kernel_marks_them(mark):
    q, k, v = tensors()
    mask = regard.rule(lambda b, h, q, k: (q >= 3) & (k <= q))
    output, lse = regard.attend(q, k, v, mask=mask, return_lse=True)
    lse[:, :, :3] = mark
    m = regard.attention_map(q, k, mask=mask, lse=lse)
    evidence = regard.certify(m, v, output, verify=True)
    assert evidence.certified
    assert evidence.empty_rows == 3
    lse[:, :, 5] = mark  # a row that sees keys
    if mark != -torch.inf:
        assert not regard.certify(regard.attention_map(q, k, mask=mask, lse=lse), v, output).certified


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 4, 128), r"lse: expected \(1, 4, 32\), .* got \(1, 4, 128\): pass lse\[\.\.\., :32\]"),
        ((1, 32, 4), r"got \(1, 32, 4\): pass lse\.mT$"),
        ((4, 32), r"got \(4, 32\)$"),
    ],
)
def test_another_shape_is_refused_with_how_to_mend_it(shape, message):
    q, k, _ = tensors()
    with pytest.raises(ValueError, match=message):
        regard.attention_map(q, k, lse=torch.zeros(shape))
