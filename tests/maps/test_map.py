"""Every tile, row, span and statistic of a map, weighted or a difference, is that of the dense matrix."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.maps import DifferenceMap, Spans, WeightedMap
from tests import strategies, truth
from tests.maps.drawn_maps import (
    KINDS,
    check_index,
    close,
    maps,
    normal,
    small_tiles,  # noqa: F401 (a fixture)
    spans,
)
from tests.refusals import refused
from tests.sampling import share

pytestmark = pytest.mark.usefixtures("small_tiles")


kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
@given(pick=st.data())
def test_a_map_is_its_dense_matrix(kind, pick):
    m, A, (x, right) = pick.draw(maps(kind=kind))
    B, H, T, S = A.shape
    same = partial(close, atol=KINDS[kind])
    same(m.to_dense(), A)
    assert (m.to_dense()[A == 0] == 0).all()  # what may not be seen is 0 exactly
    if kind == "attention":
        close(m @ x.v, right.output)
    else:
        same(m.row_sums(), A.sum(-1))
    v = normal(pick.draw, B, H, S, 3)
    same(m @ v, A @ v)
    same(torch.matmul(m, v), A @ v)
    for offset in range(-T, S + 1):
        same(m.diagonal(offset), A.diagonal(offset, -2, -1))
    check_index(m, A, pick)
    n = pick.draw(st.integers(1, S))
    top = m.topk(n)
    values, indices = top
    assert values is top.values
    assert indices is top.indices
    same(values.abs(), A.abs().topk(n).values)
    seen = indices >= 0
    assert torch.equal(seen, values != 0)
    same(A.gather(-1, indices.clamp(min=0))[seen], values[seen])


@kinds
@given(pick=st.data())
def test_received_by_weights(kind, pick):
    m, A, _ = pick.draw(maps(kind=kind))
    B, H, T, _ = A.shape
    same = partial(close, atol=KINDS[kind])
    same(m.received(), A.sum(-2))
    w = normal(pick.draw, *pick.draw(st.sampled_from([(B, H, T), (H, T), (T,), (B, 1, T)])))
    w = w * (
        torch.rand(T, generator=torch.Generator().manual_seed(T)) < pick.draw(st.sampled_from([0.2, 1.0]))
    )
    wide = w.expand(B, H, T)
    same(m.received(w), (wide.unsqueeze(-2) @ A).squeeze(-2))
    same(m[0, 0].received(wide[0, 0]), wide[0, 0] @ A[0, 0])
    some = pick.draw(st.integers(0, T - 1))
    part = (wide[..., some:].unsqueeze(-2) @ A[:, :, some:]).squeeze(-2)
    same(m[:, :, some:].received(w[..., some:]), part)
    one_hot = torch.zeros(T, dtype=torch.float64)
    one_hot[some] = -1e9
    close(m.received(one_hot), -1e9 * A[:, :, some], atol=1e-3)


@kinds
@given(pick=st.data())
def test_pool_over_any_spans_counts_and_regions(kind, pick):
    m, A, _ = pick.draw(maps(20, kind))
    T, S = A.shape[-2:]
    same = partial(close, atol=KINDS[kind])

    def compare(found, part, rows, cols):
        mass, most = truth.cells(part, rows, cols)
        same(found.mass, mass)
        # Rounding decides between entries of one magnitude and two signs, so magnitudes are compared.
        same(found.max.abs(), most.abs())

    rows, cols = (pick.draw(st.one_of(spans(n), st.integers(1, n))) for n in (T, S))
    both = m.pool(rows, cols, "both")
    compare(both, A, rows, cols)
    same(m.pool(rows, cols), both.mass)
    same(m.pool(rows, cols, "max").abs(), both.max.abs())
    compare(m[0, 0].pool(rows, cols, "both"), A[0, 0], rows, cols)
    every_key = Spans.from_edges(range(S + 1))
    same(m.pool([0, T], torch.tensor(range(S + 1))), truth.cells(A, 1, every_key)[0])
    # A region has its own cells; spans count positions of the map.
    region = tuple(
        slice(*sorted(pick.draw(st.sets(st.integers(0, n), min_size=2, max_size=2)))) for n in (T, S)
    )
    inside = A[..., region[0], region[1]]
    counts = [pick.draw(st.integers(1, n)) for n in inside.shape[-2:]]
    compare(m.pool(*counts, "both", region=region), inside, *counts)
    of_rows = m[0, 0, region[0]]  # a region of some rows of a map, counted from the first of them
    compare(of_rows.pool(*counts, "both", region=(slice(None), region[1])), inside[0, 0], *counts)
    cols, a = pick.draw(spans(S)), region[0].start
    around = (slice(a, T), slice(cols.starts[0], cols.stops[-1]))
    same(m.pool(1, cols, region=around), truth.cells(A, Spans([a], [T]), cols)[0])


@pytest.mark.parametrize(
    "shape",
    [(2, 2, 6, 3), (2, 4, 6, 3), (6, 3), (1, 1, 6, 3), (4, 6, 3), (2, 1, 6, 3), (1, 4, 6, 3)],
    ids=str,
)
def test_the_product_broadcasts_as_that_of_a_tensor(shape, monkeypatch):
    q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 6, 8)
    m = regard.attention_map(q, k, mask=regard.causal)
    A, v = m.to_dense(), torch.randn(shape)
    expected = A @ (v.repeat_interleave(2, 1) if shape == (2, 2, 6, 3) else v)  # a head a key/value head
    monkeypatch.setattr(regard.AttentionMap, "to_dense", None)  # the matrix is never built
    for found in (m @ v, torch.matmul(m, v)):
        assert torch.allclose(found, expected, atol=1e-6)


def test_torch_functions_that_a_map_has_no_way_of_its_own_for_are_right():
    q = torch.randn(3, 5, 4)
    m = regard.attention_map(q, q, mask=regard.causal)
    A, left, vector, deep = m.to_dense(), torch.randn(7, 5), torch.randn(5), torch.randn(2, 3, 5, 4)
    assert torch.allclose(left @ m, left @ A, atol=1e-6)
    assert torch.allclose(torch.matmul(m, vector), A @ vector, atol=1e-6)
    assert torch.allclose(torch.matmul(m, deep), A @ deep, atol=1e-6)
    assert torch.allclose(torch.einsum("hqk,hkd->hqd", m, q), A @ q, atol=1e-6)


def test_gradients_of_the_product_flow_to_the_values():
    q, k = torch.randn(2, 5, 8), torch.randn(1, 6, 8)
    m = regard.attention_map(10 * q, k, mask=regard.causal)  # one head or both in float64
    v = torch.randn(1, 6, 3, requires_grad=True)
    weight = torch.randn(2, 5, 3)
    (found,) = torch.autograd.grad((m @ v * weight).sum(), v)
    (expected,) = torch.autograd.grad((m.to_dense() @ v * weight).sum(), v)
    assert torch.allclose(found, expected, atol=1e-5)


@given(drawn=maps(20), pick=st.data())
def test_statistics_and_a_summary_are_those_of_the_dense_matrix(drawn, pick):
    m, A, (_, right) = drawn
    T, S = A.shape[-2:]
    a = pick.draw(st.integers(0, T - 1))
    for first, part in ((0, m), (a, m[:, :, a:])):
        dense = A[:, :, first:]
        expected = (*truth.statistics(dense, S - T + first), right.max_score[:, :, first:])
        found = part.statistics()
        for name, of_all, number in zip(found._fields, found, expected, strict=True):
            close(of_all, number)
            close(getattr(part, name)(), number)
        counts = pick.draw(st.integers(1, dense.shape[-2])), pick.draw(st.integers(1, S))
        for of_all, number in zip(
            part.summary(*counts), (*truth.cells(dense, *counts), *expected), strict=True
        ):
            close(of_all, number)


@given(drawn=maps(), pick=st.data())
def test_mass_under_any_rule(drawn, pick):
    m, A, (x, _) = drawn
    n = strategies.Sizes(*m.q.shape[:2], m.k.shape[1], *A.shape[-2:], m.q.shape[-1], x.v.shape[-1])
    rule = pick.draw(strategies.masks(n, biased=False))
    close(m.mass(rule.mask), (A * rule.allowed()).sum(-1))


def test_one_head_is_shared_out_among_threads():
    q = torch.randn(1, 1, 43, 4, dtype=torch.float64)
    m = regard.attention_map(q, q, mask=regard.causal)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for size in (2, 9, 43):
            mass, most = truth.cells(m.to_dense(), size, size)
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
def test_weights_err_no_more_than_pytorchs_softmax(dtype, n, seed):
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
    mass, most = truth.cells(right, *counts)
    their_mass, their_most = truth.cells(theirs.float(), *counts)
    assert truth.error(m.pool(*counts), mass) <= 2 * (truth.error(their_mass, mass) + unit)
    assert truth.error(m.pool(*counts, "max"), most) <= 2 * (truth.error(their_most, most) + unit)


def test_nan_in_keys_that_nobody_sees():
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


def test_moves_and_describes_itself():
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


test_bad_requests_say_what_was_expected = refused(
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
        (lambda m: m.received(torch.ones(5)), r"weights: expected .* broadcasts to \(1, 2, 6\).*got \(5,\)"),
        (lambda m: m.received(torch.ones(1)), r"weights: .*the last in full, got \(1,\)"),
        (lambda m: m.received(torch.ones(6).long()), r"weights: expected a floating-point tensor"),
        (lambda m: m.received([1.0]), r"weights: expected a torch.Tensor, got list"),
        (lambda m: m.received(torch.full((6,), torch.nan)), r"weights: expected finite numbers"),
        (lambda m: m.weighted(torch.ones(2, 1, 6)), r"u: expected .* broadcasts to \(1, 2, 6\)"),
        (lambda m: m.weighted(torch.ones(6)) @ torch.ones(1, 2, 5, 3), r"v: expected \(1, 2, 6, E\), got"),
        (lambda m: m - m[0], r"a - b: expected two maps of one shape, got \(1, 2, 6, 6\) and \(2, 6, 6\)"),
        (lambda m: m - m.weighted(torch.ones(6))[:, :1], r"a - b: expected two maps of one shape"),
        (lambda m: m.weighted(torch.ones(6)).pool(2, 2, "mean"), r"reduce: expected 'mass', 'max' or 'both'"),
        (lambda m: m.weighted(torch.ones(6)).topk(7), r"k: expected a whole number from 1 to 6, got 7"),
        (lambda m: (m - m).to_dense(limit=100), r"would take .* GiB.*\.pool\(256, 256\)"),
    ],
    lambda: (lambda q: regard.attention_map(q, q))(torch.randn(1, 2, 6, 4)),
)


@pytest.mark.parametrize("index", [(0, 2), (0, 0, 6), (0, 0, 0, -7), (0, 0, 0, 0, 0), (..., ...)])
def test_an_index_out_of_range_is_an_index_error(index):
    q = torch.randn(1, 2, 6, 4)
    with pytest.raises(IndexError, match="index: expected"):
        regard.attention_map(q, q)[index]


def test_a_tensors_method_is_answered_with_what_to_write():
    q = torch.randn(1, 2, 4, 8)
    m = regard.attention_map(q, q)
    with pytest.raises(AttributeError, match=r"an AttentionMap has no 'mean': write \.to_dense\(\)\.mean"):
        m.mean()
    with pytest.raises(AttributeError, match=r"an AttentionMap has no 'nonsense'$"):
        m.nonsense  # noqa: B018
    assert not hasattr(m, "__len_hint__")


@pytest.mark.parametrize("size", [1.0, 100.0, 1e4])
def test_large_scores_and_weights_err_no_more_than_eager_attention(size):
    q, k = torch.randn(2, 30, 8) * torch.tensor([1.0, size]).view(2, 1, 1), torch.randn(1, 30, 8)
    right = ((q.double() * 8**-0.5) @ k.double().mT).softmax(-1)
    eager = ((q * 8**-0.5) @ k.mT).softmax(-1)
    m, w, u = regard.attention_map(q, k), 1e6 * torch.randn(2, 30), 1e6 * torch.randn(2, 30)
    weighted = m.weighted(u)
    for found, theirs, expected in (
        (m.received(w), w.unsqueeze(-2) @ eager, w.double().unsqueeze(-2) @ right),
        (weighted.to_dense(), eager * u[:, None], right * u.double()[:, None]),
        (weighted.pool(30, 30, "max"), eager * u[:, None], right * u.double()[:, None]),
        (weighted.row_sums(), eager @ u[..., None], right @ u.double()[..., None]),
    ):
        error, their_error = (truth.error(x.reshape(expected.shape), expected) for x in (found, theirs))
        assert error <= 2 * their_error + 1e6 * 16 * torch.finfo(torch.float32).eps


def test_the_maximum_of_a_cell_keeps_its_sign():
    x = torch.zeros(4, 2)
    m = regard.attention_map(x, x).weighted(torch.tensor([1.0, -3.0, 2.0, -1.0]))
    assert m.pool(1, 2, "max").tolist() == [[-0.75, 0.5]]
    assert (m - regard.attention_map(x, x)).pool(1, 2, "max").tolist() == [[-1.0, -0.5]]
    assert m.topk(2).values[0].tolist() == [-0.75, 0.5]
    assert m.topk(2).indices[0].tolist() == [1, 2]


def test_a_signed_map_stands_for_its_tensor_and_describes_itself():
    q = torch.randn(2, 3, 5, 4)
    m = regard.attention_map(q, q, mask=regard.causal)
    weighted = m.weighted(torch.randn(5))
    difference = weighted - m
    assert isinstance(weighted, WeightedMap)
    assert isinstance(difference, DifferenceMap)
    assert repr(weighted) == "WeightedMap(2×3×5×5, causal, float32)"
    assert repr(difference) == "DifferenceMap(2×3×5×5, float32)"
    for signed in (weighted, difference, difference - weighted):
        assert (signed.shape, signed.ndim, len(signed)) == ((2, 3, 5, 5), 4, 2)
        assert (signed.dtype, signed.device.type) == (torch.float32, "cpu")
        assert torch.equal(torch.abs(signed), signed.to_dense().abs())
        assert torch.equal(signed.to_dense() - signed, torch.zeros(2, 3, 5, 5))
        assert torch.allclose(
            signed.to(torch.float64).to_dense(), signed.cpu().to_dense().double(), atol=1e-5
        )
    assert m.weighted(torch.randn(5).bfloat16()).dtype == torch.float32
    with pytest.raises(AttributeError, match=r"a WeightedMap has no 'mean': write \.to_dense\(\)\.mean"):
        weighted.mean()


def test_spans_are_a_sequence_with_names():
    words = Spans([0, 5], [3, 9], ["question", "answer"])
    assert list(words) == [(0, 3, "question"), (5, 9, "answer")]
    assert words[1] == (5, 9, "answer")
    assert words.find("answer") == 1
    assert words == Spans((0, 5), torch.tensor([3, 9]), ("question", "answer"))
    assert hash(words) == hash(Spans([0, 5], [3, 9], ["question", "answer"]))
    assert Spans.from_edges([2, 3, 7]).names == ("2", "3–6")
    assert words.shift(1) == Spans([1, 6], [4, 10], words.names)


@given(st.data())
def test_membership_by_the_definition(pick):
    n = pick.draw(st.integers(1, 20))
    drawn = pick.draw(spans(n))
    expected = [
        next((i for i, span in enumerate(drawn) if span.start <= p < span.stop), -1) for p in range(n + 2)
    ]
    assert drawn.membership(n + 2).tolist() == expected


test_bad_spans_say_what_was_expected = refused(
    [
        (
            lambda: Spans([0, 2], [3, 5]),
            r"starts: expected increasing, disjoint spans, but span 1 starts at 2, b",
        ),
        (lambda: Spans([0, 3], [3, 3]), r"stops: expected spans with at least one position, but span 1 is"),
        (lambda: Spans([-1], [3]), r"starts: .* span 0 starts at -1, before 0"),
        (lambda: Spans([0, 3], [3]), r"stops: expected 2, one for each start, got 1"),
        (lambda: Spans([0], [3], ["a", "b"]), r"names: expected 1, one for each span, got 2"),
        (lambda: Spans([0], [3], "a"), r"names: expected a sequence of texts"),
        (lambda: Spans([0], [3], [1]), r"names: expected a sequence of texts"),
        (lambda: Spans([0.5], [3]), r"starts: expected whole positions"),
        (lambda: Spans([[0]], [3]), r"starts: expected whole positions in one dimension, got \(1, 1\)"),
        (lambda: Spans.from_edges([3]), r"edges: expected at least two increasing positions"),
        (lambda: Spans.from_edges([0, 3, 3]), r"edges: expected at least two increasing positions"),
    ]
)


@pytest.mark.parametrize(
    ("rows", "cols", "says"),
    [
        ([0, 7], 2, r"rows: expected spans within the positions 0 to 6, got 0 to 7"),
        (2, Spans([3], [9]), r"cols: expected spans within the positions 0 to 6, got 3 to 9"),
        ([2, 1], 2, r"rows: expected at least two increasing positions, got \[2, 1\]"),
        (2, [0.5, 3], r"cols: expected whole positions"),
        (Spans([], []), 2, r"rows: expected at least one span, got none"),
        ("two", 2, r"rows: expected a whole number from 1 to 6, got 'two'"),
    ],
)
def test_bad_rows_and_cols(rows, cols, says):
    q = torch.randn(1, 2, 6, 4)
    m = regard.attention_map(q, q)
    with pytest.raises(ValueError, match=says):
        m.pool(rows, cols)
    with pytest.raises(ValueError, match=says):
        m.weighted(torch.ones(6)).pool(rows, cols)
