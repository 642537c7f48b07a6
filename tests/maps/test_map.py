"""Every tile, row and statistic of a map equals what the dense float64 matrix gives."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from tests import strategies, truth
from tests.maps.drawn_maps import cells, check_index, close, maps, small_tiles  # noqa: F401 (a fixture)
from tests.sampling import share

pytestmark = pytest.mark.usefixtures("small_tiles")


@given(drawn=maps())
def test_dense_and_lse_and_product(drawn: Any) -> None:
    m, A, (x, right) = drawn
    close(m.to_dense(), A)
    close(m @ x.v, right.output)
    assert (m.to_dense()[A == 0] == 0).all()  # what may not be seen is 0 exactly


@given(drawn=maps(), pick=st.data())
def test_indexes_like_a_tensor(drawn: Any, pick: Any) -> None:
    m, A, _ = drawn
    check_index(m, A, pick)


@pytest.mark.parametrize(
    "shape",
    [(2, 2, 6, 3), (2, 4, 6, 3), (6, 3), (1, 1, 6, 3), (4, 6, 3), (2, 1, 6, 3), (1, 4, 6, 3)],
    ids=str,
)
def test_the_product_broadcasts_as_that_of_a_tensor(shape: tuple[int, ...], monkeypatch: Any) -> None:
    q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 6, 8)
    m = regard.attention_map(q, k, mask=regard.causal)
    A, v = m.to_dense(), torch.randn(shape)
    expected = A @ (v.repeat_interleave(2, 1) if shape == (2, 2, 6, 3) else v)  # a head a key/value head
    monkeypatch.setattr(regard.AttentionMap, "to_dense", None)  # the matrix is never built
    for found in (m @ v, torch.matmul(m, v)):
        assert torch.allclose(found, expected, atol=1e-6)


def test_torch_functions_that_a_map_has_no_way_of_its_own_for_are_right() -> None:
    q = torch.randn(3, 5, 4)
    m = regard.attention_map(q, q, mask=regard.causal)
    A, left, vector, deep = m.to_dense(), torch.randn(7, 5), torch.randn(5), torch.randn(2, 3, 5, 4)
    assert torch.allclose(left @ m, left @ A, atol=1e-6)
    assert torch.allclose(torch.matmul(m, vector), A @ vector, atol=1e-6)
    assert torch.allclose(torch.matmul(m, deep), A @ deep, atol=1e-6)
    assert torch.allclose(torch.einsum("hqk,hkd->hqd", m, q), A @ q, atol=1e-6)


def test_gradients_of_the_product_flow_to_the_values() -> None:
    q, k = torch.randn(2, 5, 8), torch.randn(1, 6, 8)
    m = regard.attention_map(10 * q, k, mask=regard.causal)  # one head or both in float64
    v = torch.randn(1, 6, 3, requires_grad=True)
    weight = torch.randn(2, 5, 3)
    (found,) = torch.autograd.grad((m @ v * weight).sum(), v)
    (expected,) = torch.autograd.grad((m.to_dense() @ v * weight).sum(), v)
    assert torch.allclose(found, expected, atol=1e-5)


@given(drawn=maps())
def test_statistics(drawn: Any) -> None:
    m, A, (_, right) = drawn
    T, S = A.shape[-2:]
    back = torch.arange(T, dtype=A.dtype)[:, None] + S - T - torch.arange(S, dtype=A.dtype)
    entropy, distance = torch.special.entr(A).sum(-1), (A * back).sum(-1)
    most = right.max_score
    close(m.max_score(), most)
    close(m.entropy(), entropy)
    close(m.distance(), distance)
    close(m.received(), A.sum(-2))
    for found, expected in zip(m.statistics(), (entropy, distance, A.sum(-2), most), strict=True):
        close(found, expected)
    for offset in range(-T, S + 1):
        close(m.diagonal(offset), A.diagonal(offset, -2, -1))


@given(drawn=maps(), pick=st.data())
def test_mass_under_any_rule(drawn: Any, pick: Any) -> None:
    m, A, (x, _) = drawn
    n = strategies.Sizes(*m.q.shape[:2], m.k.shape[1], *A.shape[-2:], m.q.shape[-1], x.v.shape[-1])
    rule = pick.draw(strategies.masks(n, biased=False))
    close(m.mass(rule.mask), (A * rule.allowed()).sum(-1))


@given(drawn=maps(), n=st.integers(1, 6))
def test_topk(drawn: Any, n: int) -> None:
    m, A, _ = drawn
    n = min(n, A.shape[-1])
    top = m.topk(n)
    values, indices = top
    assert values is top.values
    assert indices is top.indices
    close(values, A.topk(n).values)
    seen = indices >= 0
    assert torch.equal(seen, values > 0)
    assert torch.allclose(A.gather(-1, indices.clamp(min=0))[seen], values[seen], atol=1e-12)


@given(drawn=maps(20), pick=st.data())
def test_pool_of_a_region(drawn: Any, pick: Any) -> None:
    m, A, _ = drawn
    starts = [pick.draw(st.integers(0, size - 1)) for size in A.shape[-2:]]
    stops = [pick.draw(st.integers(a + 1, n)) for a, n in zip(starts, A.shape[-2:], strict=True)]
    region = tuple(slice(a, b) for a, b in zip(starts, stops, strict=True))
    rows, cols = (pick.draw(st.integers(1, b - a)) for a, b in zip(starts, stops, strict=True))
    mass, most = cells(A[..., region[0], region[1]], rows, cols)
    both = m.pool(rows, cols, "both", region=region)
    close(both.mass, mass)
    close(both.max, most)
    close(m[0].pool(rows, cols, "max", region=region), most[0])
    of_rows = m[0, 0, region[0]]  # a region of some rows of a map, counted from the first of them
    close(of_rows.pool(rows, cols, region=(slice(None), region[1])), mass[0, 0])


@given(drawn=maps(20), pick=st.data())
def test_a_summary_is_overviews_and_statistics_in_one(drawn: Any, pick: Any) -> None:
    m, A, _ = drawn
    T, S = A.shape[-2:]
    a = pick.draw(st.integers(0, T - 1))
    back = torch.arange(T, dtype=A.dtype)[:, None] + S - T - torch.arange(S, dtype=A.dtype)
    for part, rows in ((m, slice(0, T)), (m[:, :, a:], slice(a, T))):
        A_part = A[:, :, rows]
        counts = pick.draw(st.integers(1, A_part.shape[-2])), pick.draw(st.integers(1, S))
        found = part.summary(*counts)
        mass, most = cells(A_part, *counts)
        close(found.mass, mass)
        close(found.max, most)
        close(found.entropy, torch.special.entr(A_part).sum(-1))
        close(found.distance, (A_part * back[rows]).sum(-1))
        close(found.received, A_part.sum(-2))


def test_one_head_is_shared_out_among_threads() -> None:
    q = torch.randn(1, 1, 43, 4, dtype=torch.float64)
    m = regard.attention_map(q, q, mask=regard.causal)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for size in (2, 9, 43):
            mass, most = cells(m.to_dense(), size, size)
            both = m.pool(size, size, "both")
            close(both.mass, mass)
            close(both.max, most)
            for found, expected in zip(m.summary(size, size)[2:], m.statistics(), strict=True):
                close(found, expected)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", share([torch.float32, torch.bfloat16, torch.float16], 2))
@given(n=strategies.sizes(24), seed=st.integers(0, 2**20))
def test_weights_err_no_more_than_pytorchs_softmax(dtype: torch.dtype, n: Any, seed: int) -> None:
    x = strategies.tensors(n, seed, dtype)
    right = truth.attention(x.q, x.k, x.v, torch.ones(n.matrix, dtype=torch.bool)).weights
    m = regard.attention_map(x.q, x.k)
    keys = x.k.repeat_interleave(n.H // n.G, 1)
    scores = (x.q * n.D**-0.5) @ keys.mT
    theirs = scores.softmax(-1)  # as eager attention does, in the same dtype
    # A weight is exp(score − lse): computing a score costs a unit in its last place, whoever does it, and a
    # softmax over one key hides that by luck.
    unit = torch.finfo(torch.float32).eps * (1 + scores.abs().max().item())
    assert truth.error(m.to_dense(), right) <= 2 * (truth.error(theirs, right) + unit)
    counts = max(1, n.T // 2), max(1, n.S // 2)
    mass, most = cells(right, *counts)
    their_mass, their_most = cells(theirs.float(), *counts)
    assert truth.error(m.pool(*counts), mass) <= 2 * (truth.error(their_mass, mass) + unit)
    assert truth.error(m.pool(*counts, "max"), most) <= 2 * (truth.error(their_most, most) + unit)


def test_nan_in_keys_that_nobody_sees() -> None:
    q, k = torch.randn(2, 1, 6, 4), torch.randn(2, 1, 6, 4)
    k[1, :, 4:] = torch.nan
    m = regard.attention_map(q, k, mask=regard.padding([6, 4]))
    for found in (
        m.to_dense(),
        m.entropy(),
        m.received(),
        m.pool(3, 3),
        *m.summary(3, 2),
        m.mass(regard.causal),
        m.diagonal(),
    ):
        assert torch.isfinite(found).all()


def test_moves_and_describes_itself() -> None:
    q = torch.randn(2, 3, 5, 4)
    m = regard.attention_map(q, q, mask=regard.causal)
    assert m.shape == (2, 3, 5, 5)
    assert (m.ndim, len(m), m.dtype, m.device.type) == (4, 2, torch.float32, "cpu")
    assert m.nbytes == 2 * q.nbytes + 2 * 3 * 5 * 4
    half = m.to(torch.bfloat16)
    assert half.q.dtype == torch.bfloat16
    assert half.nbytes == q.nbytes + 2 * 3 * 5 * 4
    assert torch.allclose(half.to_dense(), m.to_dense(), atol=0.05)
    assert "causal" in repr(m)
    assert "2×3×5×5" in repr(m)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda m: m.pool(0, 2), r"rows: expected a whole number from 1 to 6, got 0"),
        (lambda m: m.pool(2, 7), r"cols: expected a whole number from 1 to 6, got 7"),
        (lambda m: m.pool(2, 2, "mean"), r"reduce: expected 'mass', 'max' or 'both', got 'mean'"),
        (lambda m: m.pool(2, 5, region=(slice(2, 6), slice(1, 5))), r"cols: expected .* 1 to 4, got 5"),
        (lambda m: m.pool(2, 2, region=slice(2)), r"region: expected \(slice of rows, slice of keys\)"),
        (lambda m: m.pool(1, 1, region=(slice(4, 4), slice(2))), r"region: expected some of 6 rows"),
        (lambda m: m.pool(1, 1, region=(slice(4), slice(0, 6, 2))), r"region: expected some of 6 keys"),
        (lambda m: m.topk(7), r"k: expected a whole number from 1 to 6, got 7"),
        (lambda m: m.mass(torch.ones(6, 6)), r"rule: expected a mask rule.*got Tensor"),
        (lambda m: m.mass(regard.alibi(2)), r"rule: expected a rule that says yes or no"),
        (lambda m: m.mass(regard.padding([1, 2, 3])), r"one entry for each of the 1 sequences"),
        (lambda m: m @ torch.ones(1, 2, 5, 4), r"v: expected \(1, 2, 6, E\), got \(1, 2, 5, 4\)"),
        (lambda m: m @ 3, r"v: expected \(1, 2, 6, E\), got int"),
        (lambda m: m[0.5], r"index: expected a number or slice for batch, got float"),
        (lambda m: m[0, ::2], r"batch and heads take a number or a slice without a step"),
        (lambda m: m.to_dense(limit=100), r"would take .* GiB.*\.pool\(256, 256\)"),
        (lambda m: regard.attention_map(m.q, m.k, lse=m.lse[..., :3]), r"lse: expected \(1, 2, 6\)"),
        (lambda m: regard.attention_map(m.q[None], m.k[None]), r"q: expected at most 4 dimensions"),
        (lambda m: regard.attention_map(m.q, m.k, mask=torch.ones(6, 6)), r"\.bool\(\)"),
    ],
)
def test_bad_requests_say_what_was_expected(ask: Any, says: str) -> None:
    q = torch.randn(1, 2, 6, 4)
    with pytest.raises(ValueError, match=says):
        ask(regard.attention_map(q, q))


@pytest.mark.parametrize("index", [(0, 2), (0, 0, 6), (0, 0, 0, -7), (0, 0, 0, 0, 0), (..., ...)])
def test_an_index_out_of_range_is_an_index_error(index: Any) -> None:
    q = torch.randn(1, 2, 6, 4)
    with pytest.raises(IndexError, match="index: expected"):
        regard.attention_map(q, q)[index]


def test_a_tensors_method_is_answered_with_what_to_write() -> None:
    q = torch.randn(1, 2, 4, 8)
    m = regard.attention_map(q, q)
    with pytest.raises(AttributeError, match=r"an AttentionMap has no 'mean': write \.to_dense\(\)\.mean"):
        m.mean()
    with pytest.raises(AttributeError, match=r"an AttentionMap has no 'nonsense'$"):
        m.nonsense  # noqa: B018
    assert not hasattr(m, "__len_hint__")
