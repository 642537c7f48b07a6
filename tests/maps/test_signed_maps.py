"""wᵀA, weighted maps and differences equal what the dense float64 matrices give."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.maps import DifferenceMap, SignedMap, WeightedMap
from tests import strategies, truth
from tests.maps.drawn_maps import cells, check_index, close, maps, small_tiles, spans  # noqa: F401 (a fixture)

pytestmark = pytest.mark.usefixtures("small_tiles")


def normal(draw: Any, *shape: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    return torch.randn(shape, generator=made, dtype=torch.float64)


@st.composite
def signed_maps(draw: Any, most: int = 12) -> tuple[SignedMap, torch.Tensor]:
    """A weighted map, or the difference of two maps of one shape, and the dense matrix."""
    n = draw(strategies.sizes(most))

    def one() -> tuple[Any, torch.Tensor]:
        x = strategies.tensors(n, draw(st.integers(0, 2**20)), torch.float64)
        mask, softcap = draw(strategies.masks(n)), draw(st.sampled_from([None, 1.5]))
        right = truth.attention(x.q, x.k, x.v, mask.allowed(), bias=mask.score_bias(), softcap=softcap)
        m = regard.attention_map(x.q, x.k, mask=mask.mask, softcap=softcap)
        if draw(st.booleans()):
            return m, right.weights
        u = 3 * normal(draw, n.B, n.H, n.S)
        return m.weighted(u), right.weights * u[:, :, None]

    m, A = one()
    if isinstance(m, SignedMap) and draw(st.booleans()):
        return m, A
    other, B = one()
    return m - other, A - B


@given(drawn=maps(), pick=st.data())
def test_received_by_weights(drawn: Any, pick: Any) -> None:
    m, A, _ = drawn
    B, H, T, _ = A.shape
    w = normal(pick.draw, *pick.draw(st.sampled_from([(B, H, T), (H, T), (T,), (B, 1, T)])))
    w = w * (
        torch.rand(T, generator=torch.Generator().manual_seed(T)) < pick.draw(st.sampled_from([0.2, 1.0]))
    )
    close(m.received(w), (w.expand(B, H, T).unsqueeze(-2) @ A).squeeze(-2))
    close(m[0, 0].received(w.expand(B, H, T)[0, 0]), w.expand(B, H, T)[0, 0] @ A[0, 0])
    some = pick.draw(st.integers(0, T - 1))
    close(
        m[:, :, some:].received(w[..., some:]),
        (w[..., some:].expand(B, H, -1).unsqueeze(-2) @ A[:, :, some:]).squeeze(-2),
    )
    one_hot = torch.zeros(T, dtype=torch.float64)
    one_hot[some] = -1e9
    close(m.received(one_hot), -1e9 * A[:, :, some], atol=1e-3)


@pytest.mark.parametrize("size", [1.0, 100.0, 1e4])
def test_large_scores_and_weights_err_no_more_than_eager_attention(size: float) -> None:
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


@given(drawn=signed_maps(), pick=st.data())
def test_a_signed_map_is_its_dense_matrix(drawn: Any, pick: Any) -> None:
    m, A = drawn
    B, H, T, S = A.shape
    close(m.to_dense(), A, 1e-11)
    close(m.row_sums(), A.sum(-1), 1e-11)
    close(m.received(), A.sum(-2), 1e-11)
    w, v = normal(pick.draw, H, T), normal(pick.draw, B, H, S, 3)
    close(m.received(w), (w.unsqueeze(-2) @ A).squeeze(-2), 1e-11)
    close(m @ v, A @ v, 1e-11)
    close(torch.matmul(m, v), A @ v, 1e-11)
    for offset in range(-T, S + 1):
        close(m.diagonal(offset), A.diagonal(offset, -2, -1), 1e-11)
    n = pick.draw(st.integers(1, S))
    values, indices = m.topk(n)
    close(values.abs(), A.abs().topk(n).values, 1e-11)
    seen = indices >= 0
    assert torch.equal(seen, values != 0)
    close(A.gather(-1, indices.clamp(min=0))[seen], values[seen], 1e-11)


@given(drawn=signed_maps(), pick=st.data())
def test_a_signed_map_pools_over_any_spans(drawn: Any, pick: Any) -> None:
    m, A = drawn
    rows, cols = (pick.draw(spans(n)) for n in A.shape[-2:])
    mass, most = cells(A, rows, cols)
    close(m.pool(rows, cols), mass, 1e-11)
    # Rounding decides between entries of one magnitude and two signs, so magnitudes are compared.
    close(m.pool(rows, cols, "max").abs(), most.abs(), 1e-11)
    both = m[0, 0].pool(rows, cols, "both")
    close(both.mass, mass[0, 0], 1e-11)
    close(both.max.abs(), most[0, 0].abs(), 1e-11)
    region = (slice(rows.starts[0], rows.stops[-1]), slice(cols.starts[0], cols.stops[-1]))
    part = A[..., region[0], region[1]]
    close(m.pool(1, 1, region=region)[..., 0, 0], part.sum(-1).mean(-1), 1e-11)


def test_the_maximum_of_a_cell_keeps_its_sign() -> None:
    x = torch.zeros(4, 2)
    m = regard.attention_map(x, x).weighted(torch.tensor([1.0, -3.0, 2.0, -1.0]))
    assert m.pool(1, 2, "max").tolist() == [[-0.75, 0.5]]
    assert (m - regard.attention_map(x, x)).pool(1, 2, "max").tolist() == [[-1.0, -0.5]]
    assert m.topk(2).values[0].tolist() == [-0.75, 0.5]
    assert m.topk(2).indices[0].tolist() == [1, 2]


@given(drawn=signed_maps(), pick=st.data())
def test_a_signed_map_indexes_like_a_tensor(drawn: Any, pick: Any) -> None:
    part, dense = check_index(*drawn, pick)
    if isinstance(part, SignedMap):
        close(part.received(), dense.sum(-2), 1e-11)


def test_a_signed_map_stands_for_its_tensor_and_describes_itself() -> None:
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


@pytest.mark.parametrize(
    ("ask", "says"),
    [
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
)
def test_bad_requests_say_what_was_expected(ask: Any, says: str) -> None:
    q = torch.randn(1, 2, 6, 4)
    with pytest.raises(ValueError, match=says):
        ask(regard.attention_map(q, q))
