"""`attend` on every path that a CPU has: output, lse and gradients against the truth, and who serves what."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from regard.attention.backends import tiles
from tests import strategies, truth
from tests.sampling import share

PATHS = ("tiled", "auto")


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 4 × 5, so that small matrices have many, with edges in odd places, and parts of few heads."""
    monkeypatch.setattr(tiles, "ROWS", 4)
    monkeypatch.setattr(tiles, "COLS", 5)
    monkeypatch.setattr(tiles, "TILE_NUMBERS", 50)


@st.composite
def problems(draw: Any, most: int = 14) -> tuple[strategies.Sizes, strategies.DrawnMask, dict[str, Any], int]:
    n = draw(strategies.sizes(most))
    drawn = draw(strategies.masks(n))
    options = {
        "scale": draw(st.sampled_from([None, 0.3, -1.0])),
        "softcap": draw(st.sampled_from([None, None, 1.5])),
        "sinks": draw(st.booleans()),
    }
    return n, drawn, options, draw(st.integers(0, 2**20))


def _true(n: Any, drawn: Any, options: dict[str, Any], x: Any) -> Any:
    sinks = x.sinks if options["sinks"] else None
    return truth.attention(
        x.q, x.k, x.v, drawn.allowed(), bias=drawn.score_bias(), sinks=sinks,
        scale=options["scale"], softcap=options["softcap"],
    )  # fmt: skip


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("path", PATHS)
@given(problem=problems())
def test_output_lse_and_gradients_are_the_truth(path: str, problem: Any) -> None:
    n, drawn, options, seed = problem
    x = strategies.tensors(n, seed, torch.float64)
    inputs = [y.requires_grad_() for y in (x if options["sinks"] else x[:3])]
    right = _true(n, drawn, options, x)
    output, lse = regard.attend(
        x.q, x.k, x.v, mask=drawn.mask, return_lse=True, backend=path,
        **options | {"sinks": x.sinks if options["sinks"] else None},
    )  # fmt: skip
    assert truth.error(output, right.output) < 1e-12
    assert torch.allclose(lse, right.lse.detach(), atol=1e-12, rtol=0)
    upstream = torch.randn(output.shape, dtype=torch.float64)
    found, expected = (truth.gradients(y, inputs, upstream) for y in (output, right.output))
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.isfinite(ours).all()
        assert truth.error(ours, theirs) < 1e-11


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("dtype", share([torch.float32, torch.bfloat16, torch.float16], 2))
@given(n=strategies.sizes(24), seed=st.integers(0, 2**20), causal=st.booleans())
def test_tiles_err_no_more_than_pytorch(dtype: torch.dtype, n: Any, seed: int, causal: bool) -> None:
    n = n._replace(T=n.S)
    x = strategies.tensors(n, seed, dtype)
    mask = regard.causal if causal else regard.full
    right = truth.attention(x.q, x.k, x.v, mask.to_dense(n.T, n.S).expand(n.matrix))
    ours = regard.attend(x.q, x.k, x.v, mask=mask, backend="tiled")
    theirs = sdpa(x.q, x.k, x.v, is_causal=causal, enable_gqa=n.H != n.G)
    assert ours.dtype == dtype
    # Both sum the same products in another order: twice PyTorch's error is as good as equal.
    assert truth.ratio_to_torch(ours, theirs, right.output) <= 2.0


@pytest.mark.parametrize("softcap", share([1.0, None], 2))
def test_gradcheck_of_the_tiles(small_tiles: None, softcap: float | None) -> None:
    x = strategies.tensors(strategies.Sizes(1, 2, 1, 5, 6, 3, 2), 0, torch.float64)
    inputs = tuple(y.requires_grad_() for y in x)
    mask = regard.causal & regard.window(4) | regard.prefix(1)

    def run(q: Any, k: Any, v: Any, sinks: Any) -> Any:
        return regard.attend(q, k, v, mask=mask, softcap=softcap, sinks=sinks, backend="tiled")

    assert torch.autograd.gradcheck(run, inputs)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_no_query_may_see_never_matters(path: str, bad: float) -> None:
    x = strategies.tensors(strategies.Sizes(2, 2, 1, 9, 9, 4, 4), 3)
    blind = regard.rule(lambda b, h, q, k: (q != 2) | (b != 0) | (h != 0))
    mask = regard.causal & regard.padding([9, 4]) & blind
    spoiled = [y.clone() for y in x[:3]]
    spoiled[1][1, :, 4:], spoiled[2][1, :, 4:] = bad, bad
    spoiled[0][0, 0, 2] = x.q[0, 0, 2] = bad  # a query that may look at nothing
    results = []
    for tensors in (x[:3], spoiled):
        q, k, v = (y.clone().requires_grad_() for y in tensors)
        output = regard.attend(q, k, v, mask=mask, backend=path)
        output.sum().backward()
        results.append((output.detach(), q.grad, k.grad, v.grad))
        assert all(torch.isfinite(found).all() for found in results[-1])
    for clean, with_bad in zip(*results, strict=True):
        assert torch.equal(clean, with_bad)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
def test_nothing_to_look_at_gives_zeros(shape: tuple[int, int]) -> None:
    T, S = shape
    q, k = torch.randn(2, 3, T, 8, requires_grad=True), torch.randn(2, 3, S, 8)
    output, lse = regard.attend(q, k, k, return_lse=True)
    assert output.shape == (2, 3, T, 8)
    assert torch.equal(output, torch.zeros_like(output))
    assert torch.equal(lse, torch.full((2, 3, T), -torch.inf))
    output.sum().backward()
    assert torch.equal(q.grad, torch.zeros_like(q))


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 2, 3)])
def test_leading_dimensions_may_be_absent_or_more(lead: tuple[int, ...]) -> None:
    q, k, v = (torch.randn(*lead, 5, 4, dtype=torch.float64) for _ in range(3))
    output, lse = regard.attend(q, k, v, mask=regard.causal & regard.window(2), return_lse=True)
    expected, _ = regard.scaled_dot_product_attention(q, k, v, regard.causal & regard.window(2))
    assert lse.shape == (*lead, 5)
    assert torch.allclose(output, expected, atol=1e-12)


@pytest.mark.usefixtures("small_tiles")
def test_dropout_drops_weights_and_keeps_their_mean() -> None:
    q, k = torch.zeros(1, 1, 40, 4), torch.zeros(1, 1, 50, 4)
    v = torch.eye(50)[None, None]  # the output is the weights themselves
    torch.manual_seed(3)
    weights = regard.attend(q, k, v, dropout=0.25) * 50
    assert sorted(weights.unique().tolist()) == pytest.approx([0.0, 1 / 0.75])
    assert weights.mean().item() == pytest.approx(1.0, abs=0.05)
    torch.manual_seed(3)
    assert torch.equal(regard.attend(q, k, v, dropout=0.25) * 50, weights)
    assert torch.equal(regard.attend(q, k, v, dropout=1.0), torch.zeros(1, 1, 40, 50))


@pytest.mark.usefixtures("small_tiles")
def test_the_backward_pass_drops_what_the_forward_pass_dropped() -> None:
    x = strategies.tensors(strategies.Sizes(1, 2, 1, 9, 11, 3, 4), 5, torch.float64)
    v = x.v.clone().requires_grad_()

    def run(v: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(8)
        return regard.attend(x.q, x.k, v, dropout=0.4, backend="tiled")

    # The output is linear in v, so its gradient is the dropped weights themselves.
    (grad,) = torch.autograd.grad(run(v).sum(), v)
    for s, e in itertools.product(range(11), range(4)):
        one = torch.zeros_like(x.v)
        one[0, 0, s, e] = 1.0
        assert grad[0, 0, s, e].item() == pytest.approx(run(one).sum().item(), abs=1e-12)


def test_a_bias_that_wants_a_gradient_gets_it() -> None:
    x = strategies.tensors(strategies.Sizes(1, 2, 2, 4, 4, 3, 3), 1, torch.float64)
    bias = torch.randn(2, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda bias: regard.attend(*x[:3], mask=bias), (bias,))
    assert regard.which_backend(*x[:3], mask=bias).backend == "steps"


def test_lse_is_a_reading_without_gradient() -> None:
    q = torch.randn(1, 2, 6, 4, requires_grad=True)
    for path in ("torch", "tiled", "steps"):
        assert not regard.attend(q, q, q, return_lse=True, backend=path)[1].requires_grad


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        ({}, "torch"),
        ({"mask": regard.causal}, "torch"),
        ({"mask": regard.causal & regard.window(64)}, "torch"),  # a window that hides nothing is no window
        ({"mask": regard.padding([8])}, "torch"),
        ({"mask": regard.causal & regard.window(3)}, "torch"),
        ({"mask": regard.rule(lambda b, h, q, k: k <= q)}, "torch"),
        ({"mask": regard.rule(lambda b, h, q, k, n=[1]: k <= q + n[0])}, "tiled"),  # a list may change
        ({"softcap": 3.0}, "tiled"),
        ({"dropout": 0.1}, "tiled"),
    ],
)
def test_explain_says_what_auto_takes(options: dict[str, Any], taken: str) -> None:
    q = torch.randn(1, 2, 8, 4)
    told = regard.which_backend(q, q, q, **options)
    assert told.backend == taken
    assert f"{taken}: taken" in str(told)
    assert all(why for why in told.refusals.values())
    assert "triton" in told.refusals


@pytest.mark.parametrize("group", [1, 2, 4])
def test_one_query_of_grouped_heads_is_the_truth(group: int) -> None:
    x = strategies.tensors(strategies.Sizes(2, 3 * group, 3, 1, 70, 8, 8), 5, torch.float64)
    inputs = [y.requires_grad_() for y in x[:3]]
    right = truth.attention(*x[:3], torch.ones(2, 3 * group, 1, 70, dtype=torch.bool))
    upstream = torch.randn(right.output.shape, dtype=torch.float64)
    expected = truth.gradients(right.output, inputs, upstream)
    for _ in range(2):  # the second has a plan
        output, lse = regard.attend(*x[:3], mask=regard.causal, return_lse=True)
        alone = regard.attend(*x[:3], mask=regard.causal)
        assert truth.error(output, right.output) < 1e-12
        assert torch.equal(output, alone)
        assert torch.allclose(lse, right.lse.detach(), atol=1e-12, rtol=0)
        for found, gradient in zip(truth.gradients(alone, inputs, upstream), expected, strict=True):
            assert truth.error(found, gradient) < 1e-11


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_padding_goes_to_pytorch_unless_it_holds_nan(bad: float) -> None:
    q, k = torch.randn(2, 2, 5, 4), torch.randn(2, 2, 7, 4)
    mask = regard.padding([7, 3])
    assert regard.which_backend(q, k, k, mask=mask).backend == "torch"
    assert regard.which_backend(q, k, k, mask=regard.padding([7, 0])).backend == "tiled"
    clean = regard.attend(q, k, k, mask=mask)
    k[1, :, 3:] = bad
    assert torch.allclose(regard.attend(q, k, k, mask=mask), clean, atol=1e-6)


def test_a_path_can_be_forced_and_says_when_it_cannot() -> None:
    q = torch.randn(1, 2, 8, 4)
    with pytest.raises(ValueError, match=r"backend: 'torch' cannot serve this: its kernels have no softcap"):
        regard.attend(q, q, q, softcap=2.0, backend="torch")
    with pytest.raises(ValueError, match=r"backend: expected one of 'auto'.*got 'flash'"):
        regard.attend(q, q, q, backend="flash")
    with regard.attention.backend("torch"), pytest.raises(ValueError, match="no sinks"):
        regard.attend(q, q, q, sinks=torch.zeros(2))
    with pytest.raises(ValueError, match="got 'quick'"), regard.attention.backend("quick"):
        pass
    assert regard.attend(q, q, q, sinks=torch.zeros(2)).shape == q.shape  # the block is left


def test_attend_is_one_graph_which_keeps_the_path_of_its_first_call() -> None:
    q = torch.randn(1, 2, 8, 4)
    compiled = torch.compile(lambda q: regard.attend(q, q, q, softcap=2.0), backend="eager", fullgraph=True)
    with regard.attention.backend("steps"):
        first = compiled(q)
    assert torch.equal(first, regard.attend(q, q, q, softcap=2.0, backend="steps"))
    with regard.attention.backend("torch"):  # which would refuse the softcap
        assert torch.equal(compiled(q), first)


@pytest.mark.parametrize(("width", "size"), [(8, 1.0), (8, 1e4), (64, 1.0), (64, 1e3)])
def test_gradients_of_large_scores_err_no_more_than_eager_attentions(size: float, width: int) -> None:
    """The backward pass computes the weights again, and must not lose the digits of the scores."""
    made = torch.Generator().manual_seed(5)
    inputs = [torch.randn(1, 2, 300, width, generator=made) for _ in range(3)]
    inputs[0], inputs[1] = inputs[0] * size**0.5, inputs[1] * size**0.5 + 0.2 * size**0.5
    sinks, upstream = size * torch.tensor([1.0, 0.1]), torch.randn(1, 2, 300, width, generator=made)

    def found(dtype: torch.dtype, name: str) -> list[torch.Tensor]:
        given = [x.to(dtype).requires_grad_() for x in (*inputs, sinks)]
        output = regard.attend(*given[:3], mask=regard.causal, sinks=given[3], backend=name)
        return [output, *torch.autograd.grad(output, given, upstream.to(dtype))]

    right, eager = found(torch.float64, "steps"), found(torch.float32, "steps")
    for a, b, c in zip(found(torch.float32, "tiled"), eager, right, strict=True):
        unit = 8 * torch.finfo(torch.float32).eps * c.abs().max().item()
        assert truth.error(a, c) <= 2 * truth.error(b, c) + unit
