"""Attention on every path of a CPU: output, lse and gradients against the truth, and who serves what."""

import itertools
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard import causal, padding, scaled_dot_product_attention
from regard.attention.backends import row_blocks, tiles
from regard.attention.steps import Steps, trace
from regard.support.lru import LRUCache
from tests import strategies, truth
from tests.sampling import combine, examples, together
from tests.strategies import DrawnMask, Sizes, Tensors, tensors

PATHS = ("steps", "tiled", "auto")


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of 4 × 5 and blocks of 4 rows, so that small matrices have many, with edges in odd places."""
    monkeypatch.setattr(tiles, "ROWS", 4)
    monkeypatch.setattr(tiles, "COLS", 5)
    monkeypatch.setattr(tiles, "TILE_NUMBERS", 50)
    monkeypatch.setattr(row_blocks, "ROWS", 4)
    monkeypatch.setattr(row_blocks, "_cache", LRUCache(row_blocks.MAXSIZE))


class Problem(NamedTuple):
    drawn: DrawnMask
    options: dict[str, Any]
    seed: int

    def given(self, x):
        """The options of a call: with the sinks, if there are any."""
        return self.options | {"sinks": x.sinks if self.options["sinks"] else None}

    def true(self, x):
        allowed, bias = self.drawn.allowed(), self.drawn.score_bias()
        return truth.attention(*x[:3], allowed, bias=bias, **self.given(x))


@st.composite
def problems(draw, most=11):
    drawn = draw(strategies.sized_masks(most=most))
    options = {
        "scale": draw(st.sampled_from([None, None, 0.3, -1.0])),
        "softcap": draw(st.sampled_from([None, None, 1.5, 30.0])),
        "sinks": draw(st.booleans()),
    }
    return Problem(drawn, options, draw(st.integers(0, 2**20)))


def wanting_gradients(x, dtype=None):
    return Tensors(*(y.detach().to(dtype or y.dtype).clone().requires_grad_() for y in x))


@pytest.mark.usefixtures("small_tiles")
@given(problem=problems())
def test_output_lse_and_gradients_are_the_truth_on_every_path(problem):
    x = wanting_gradients(strategies.tensors(problem.drawn.n, problem.seed, torch.float64))
    plain = Tensors(*(y.detach() for y in x))
    call, call_alone = ({"mask": problem.drawn.mask, **problem.given(y)} for y in (x, plain))
    right = problem.true(x)
    upstream = torch.randn(right.output.shape, dtype=torch.float64)
    expected = truth.gradients(right.output, list(x), upstream)
    for path in PATHS:
        output, lse = regard.attend(*x[:3], **call, return_lse=True, backend=path)
        found = [output]
        for _ in range(2):  # without gradients, and the second has a plan
            alone, lse_alone = regard.attend(*plain[:3], **call_alone, return_lse=True, backend=path)
            assert torch.allclose(lse_alone, lse, atol=1e-12, rtol=0), path
            found += [alone, regard.attend(*plain[:3], **call_alone, backend=path)]
        assert max(truth.error(y, right.output) for y in found) < 1e-12, path
        assert torch.allclose(lse, right.lse, atol=1e-12, rtol=0), path
        for ours, theirs in zip(truth.gradients(output, list(x), upstream), expected, strict=True):
            assert torch.isfinite(ours).all(), path
            assert truth.error(ours, theirs) < 1e-11, path
    _, weights = regard.scaled_dot_product_attention(*x[:3], **call)
    assert truth.error(weights, right.weights) < 1e-13


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 2, 3)])
def test_leading_dimensions_may_be_absent_or_more(lead):
    q, k, v = (torch.randn(*lead, 5, 4, dtype=torch.float64) for _ in range(3))
    output, lse = regard.attend(q, k, v, mask=regard.causal & regard.window(2), return_lse=True)
    expected, _ = regard.scaled_dot_product_attention(q, k, v, regard.causal & regard.window(2))
    assert lse.shape == (*lead, 5)
    assert torch.allclose(output, expected, atol=1e-12)


# The largest error may be this much of PyTorch's own, which gets one unit in the last place on top. Both sum
# the same few products in another order, so on a single draw of numbers, or in a gradient whose terms cancel,
# either comes out ahead by luck; over several draws and all gradients together the luck evens out.
NO_WORSE = {"steps": 1.5, "tiled": 2.0}
DRAWS = 12  # few tensors of a few numbers: with four, luck alone reached 1.8


def torchs_own(made, drawn, *, scale, softcap, sinks):
    """The same attention by PyTorch: its fused function where that can express it, plain operations if not.

    Where there is a bias it works in float32 and rounds at the end, since SDPA would round the bias first.
    """
    n, allowed = drawn.n, drawn.allowed()
    allowed = allowed | ~allowed.any(-1, keepdim=True)  # empty rows are left out of the comparison
    bias, dtype = drawn.score_bias(), made.q.dtype
    q, k, v = made[:3]
    if softcap is not None or bias is not None or sinks is not None:
        q, k, v = q.float(), k.float(), v.float()
        mask = torch.zeros(n.matrix) if bias is None else bias.float()
        mask = mask.nan_to_num(neginf=0.0).masked_fill(~allowed, -torch.inf)
    else:
        mask = allowed
    if softcap is not None:
        k, v = (x.repeat_interleave(n.H // n.G, 1) for x in (k, v))
        scores = q @ k.mT * (n.D**-0.5 if scale is None else scale)
        scores = torch.tanh(scores / softcap) * softcap + mask
        if sinks is not None:
            scores = torch.cat([scores, sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)], -1)
        return (scores.softmax(-1)[..., : n.S] @ v).to(dtype)
    if sinks is not None:  # a sink is a key of zeros whose value is zeros, with its logit as bias
        k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        mask = torch.cat([mask, sinks.float().view(1, -1, 1, 1).expand(*mask.shape[:-1], 1)], -1)
    return F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=True).to(dtype)


def results(problem, dtype):
    """The output and each gradient: by truth in float64, by PyTorch at the dtype, and on every path."""
    drawn = problem.drawn
    made = strategies.tensors(drawn.n, problem.seed, dtype)
    seen = drawn.allowed().any(-1, keepdim=True)  # (B, H, T, 1)
    upstream = torch.randn(*made.q.shape[:-1], drawn.n.E).to(dtype) * seen
    exact, torchs, *own = (
        wanting_gradients(made, x) for x in (torch.float64, dtype, *[dtype] * len(NO_WORSE))
    )
    outputs = [problem.true(exact).output, torchs_own(torchs, drawn, **problem.given(torchs))]
    for path, x in zip(NO_WORSE, own, strict=True):
        outputs.append(regard.attend(*x[:3], mask=drawn.mask, backend=path, **problem.given(x)))
        assert outputs[-1].dtype == dtype
        assert (outputs[-1].masked_select(~seen) == 0).all(), "a query that may look at nothing gets zeros"
    found = {"output": [output * seen for output in outputs]}
    for output, inputs in zip(outputs, (exact, torchs, *own), strict=True):
        gradients = truth.gradients(output, list(inputs), upstream)
        for name, gradient in zip(Tensors._fields, gradients, strict=True):
            found.setdefault(name, []).append(gradient)
    assert all(x.isfinite().all() for numbers in found.values() for x in numbers[2:])
    return found


def assert_no_worse_than_pytorch(problem, dtype):
    """Compare the errors of the output and of the gradients together, over DRAWS draws."""
    draws = [results(problem._replace(seed=problem.seed + i), dtype) for i in range(DRAWS)]
    for group in (["output"], list(Tensors._fields)):
        columns = zip(*(draw[name] for draw in draws for name in group), strict=True)
        exact, torchs, *ours = (torch.cat([x.flatten() for x in column]) for column in columns)
        for (path, limit), own in zip(NO_WORSE.items(), ours, strict=True):
            assert truth.ratio_to_torch(own, torchs, exact) <= limit, (path, group)


@pytest.mark.usefixtures("small_tiles")
@settings(max_examples=examples(40))
@given(problem=problems(9), dtype=strategies.dtypes)
def test_no_further_from_the_truth_than_pytorch(problem, dtype):
    assert_no_worse_than_pytorch(problem, dtype)


@pytest.mark.parametrize(
    ("dtype", "softcap"), combine([torch.float32, torch.bfloat16, torch.float16], [None, 20.0]), ids=str
)
def test_no_further_from_the_truth_at_a_real_width(dtype, softcap):
    n = Sizes(B=1, H=4, G=2, T=8, S=24, D=64, E=64)
    drawn = DrawnMask(regard.causal, n, lambda b, h, i, j: j <= i + 16)
    options = {"scale": None, "softcap": softcap, "sinks": True}
    assert_no_worse_than_pytorch(Problem(drawn, options, seed=1), dtype)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("path", PATHS)
@given(problem=problems(9), poison=st.sampled_from([torch.nan, torch.inf, -torch.inf]))
def test_what_nobody_may_look_at_never_matters(path, problem, poison):
    n, allowed = problem.drawn.n, problem.drawn.allowed()
    clean = strategies.tensors(n, problem.seed)
    unseen = ~allowed.any(-2).unflatten(1, (n.G, n.H // n.G)).any(2)  # (B, G, S): by no query of no head
    blind = ~allowed.any(-1)  # (B, H, T)
    dirty = Tensors(
        clean.q.masked_fill(blind[..., None], poison),
        clean.k.masked_fill(unseen[..., None], poison),
        clean.v.masked_fill(unseen[..., None], poison),
        clean.sinks,
    )
    found = []
    for x in map(wanting_gradients, (clean, dirty)):
        call = {"mask": problem.drawn.mask, "backend": path, **problem.given(x)}
        output, lse = regard.attend(*x[:3], **call, return_lse=True)
        upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            alone = regard.attend(*x[:3], **call)
        found.append([output, lse, alone, *truth.gradients(output, list(x), upstream)])
    for before, after in zip(*found, strict=True):
        # Other kernels serve NaN, which sum in another order.
        assert torch.allclose(before, after, atol=1e-5) if path == "auto" else torch.equal(before, after)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_a_query_that_sees_nothing_beside_a_sink_of_minus_infinity(path, softcap):
    made = wanting_gradients(strategies.tensors(Sizes(1, 2, 1, 4, 3, 4, 4), 0))
    nobody = regard.rule(lambda b, h, q, k: (q > 0) & (k <= q))  # queries 0 and 1 stand at positions −1 and 0
    sinks = torch.tensor([0.5, -torch.inf])
    output = regard.attend(*made[:3], mask=nobody, sinks=sinks, softcap=softcap, backend=path)
    assert ((output != 0) == (torch.arange(4)[:, None] >= 2)).all()
    output.sum().backward()
    assert all(x.grad.isfinite().all() for x in made[:3])
    assert ((made.q.grad != 0).any(-1) == (torch.arange(4) >= 2)).all()


EMPTY = {
    "no queries": Sizes(2, 2, 1, 0, 3, 4, 5),
    "no keys": Sizes(2, 2, 1, 3, 0, 4, 5),
    "no batch": Sizes(0, 2, 1, 3, 3, 4, 5),
    "no heads": Sizes(1, 0, 0, 3, 3, 4, 5),
    "nothing at all": Sizes(1, 2, 2, 0, 0, 4, 0),
}
MASKS = [None, regard.causal, regard.rule(lambda b, h, q, k: (b + h + q) >= k), torch.zeros(1, 1)]


@pytest.mark.parametrize("path", ["steps", "auto"])  # tiles refuse what has nothing to compute
@together(("name", "mask"), itertools.product(EMPTY, MASKS))
def test_empty_sizes_give_zeros(path, name, mask):
    n = EMPTY[name]
    x = wanting_gradients(strategies.tensors(n, 0))
    output, lse = regard.attend(*x[:3], mask=mask, return_lse=True, backend=path)
    assert torch.equal(lse, torch.full(n.matrix[:3], -torch.inf))
    others = {"mask": mask, "sinks": x.sinks, "dropout": 0.1}
    for found in (output, regard.attend(*x[:3], **others, backend=path)):
        assert torch.equal(found, torch.zeros(*n.matrix[:3], n.E))
        found.sum().backward()
    assert not x.q.grad.any()
    assert regard.scaled_dot_product_attention(*x[:3], mask)[1].shape == n.matrix


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("path", ["steps", "tiled"])
def test_dropout_drops_weights_and_keeps_their_mean(path):
    q, k = torch.zeros(1, 1, 40, 4, requires_grad=True), torch.zeros(1, 1, 50, 4)
    v = torch.eye(50)[None, None]  # the output is the weights themselves

    def weights(dropout):
        torch.manual_seed(3)
        return regard.attend(q, k, v, dropout=dropout, backend=path) * 50

    dropped = weights(0.25)
    assert sorted(dropped.unique().tolist()) == pytest.approx([0.0, 1 / 0.75])
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.05)
    assert torch.equal(weights(0.25), dropped)
    assert not weights(1.0).any()
    weights(1.0).sum().backward()
    assert not q.grad.any()
    torch.manual_seed(3)
    state = torch.get_rng_state()
    assert torch.allclose(weights(0.0), torch.ones(1, 1, 40, 50))
    assert torch.equal(state, torch.get_rng_state())  # nothing was drawn


def test_dropped_weights_are_those_of_the_output():
    q, k, v, _ = strategies.tensors(Sizes(1, 2, 1, 6, 6, 4, 4), 0)
    output, dropped = regard.scaled_dot_product_attention(q, k, v, regard.causal, dropout=0.25)
    torch.testing.assert_close(output, dropped @ v.repeat_interleave(2, 1))


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("path", ["steps", "tiled"])
def test_the_backward_pass_drops_what_the_forward_pass_dropped(path):
    x = strategies.tensors(Sizes(1, 2, 1, 9, 11, 3, 4), 5, torch.float64)
    v = x.v.clone().requires_grad_()

    def run(v):
        torch.manual_seed(8)
        return regard.attend(x.q, x.k, v, dropout=0.4, backend=path)

    # The output is linear in v, so its gradient is the dropped weights themselves.
    (grad,) = torch.autograd.grad(run(v).sum(), v)
    for s, e in itertools.product(range(11), range(4)):
        one = torch.zeros_like(x.v)
        one[0, 0, s, e] = 1.0
        assert grad[0, 0, s, e].item() == pytest.approx(run(one).sum().item(), abs=1e-12)


def test_a_bias_that_wants_a_gradient_gets_it():
    x = strategies.tensors(strategies.Sizes(1, 2, 2, 4, 4, 3, 3), 1, torch.float64)
    bias = torch.randn(2, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda bias: regard.attend(*x[:3], mask=bias), (bias,))
    assert regard.which_backend(*x[:3], mask=bias).backend == "steps"


def test_lse_is_a_reading_without_gradient():
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
        ({"mask": regard.padding([0])}, "tiled"),  # hides all keys
        ({"mask": regard.causal & regard.window(3)}, "torch"),
        # Gradients keep the digits of large scores.
        (
            {"q": torch.randn(1, 2, 8, 4, requires_grad=True), "mask": regard.causal & regard.window(3)},
            "tiled",
        ),
        ({"mask": regard.rule(lambda b, h, q, k: k <= q)}, "torch"),
        ({"mask": regard.rule(lambda b, h, q, k: k <= q + h)}, "tiled"),  # not the same for all heads
        ({"mask": regard.rule(lambda b, h, q, k, n=[1]: k <= q + n[0])}, "tiled"),  # a list may change
        ({"mask": ~regard.causal}, "tiled"),  # the last query sees no key
        ({"mask": regard.causal & regard.window(3) & regard.alibi(2)}, "tiled"),
        ({"softcap": 3.0}, "tiled"),
        ({"dropout": 0.1}, "tiled"),
    ],
)
def test_explain_says_what_auto_takes(options, taken):
    told = regard.which_backend(**dict.fromkeys("qkv", torch.randn(1, 2, 8, 4)) | options)
    assert told.backend == taken
    assert f"{taken}: taken" in str(told)
    assert all(why for why in told.refusals.values())
    assert "triton" in told.refusals


@pytest.mark.parametrize("group", [1, 2, 4])
def test_one_query_of_grouped_heads_is_the_truth(group):
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


def test_a_path_can_be_forced_and_says_when_it_cannot():
    q = torch.randn(1, 2, 8, 4)
    with pytest.raises(ValueError, match=r"backend: 'torch' cannot serve this: its kernels have no softcap"):
        regard.attend(q, q, q, softcap=2.0, backend="torch")
    for wrong in ("flash", ["auto"]):
        with pytest.raises(ValueError, match=r"backend: expected one of 'auto'.*got .*" + wrong[0]):
            regard.attend(q, q, q, backend=wrong)
    with regard.attention.backend("torch"), pytest.raises(ValueError, match="no sinks"):
        regard.attend(q, q, q, sinks=torch.zeros(2))
    with pytest.raises(ValueError, match="got 'quick'"), regard.attention.backend("quick"):
        pass
    assert regard.attend(q, q, q, sinks=torch.zeros(2)).shape == q.shape  # the block is left


def test_attend_is_one_graph_which_keeps_the_path_of_its_first_call():
    q = torch.randn(1, 2, 8, 4)
    for _ in range(2):  # the second has a plan
        regard.attend(q, q, q, softcap=2.0)
    compiled = torch.compile(lambda q: regard.attend(q, q, q, softcap=2.0), backend="eager", fullgraph=True)
    with regard.attention.backend("steps"):
        first = compiled(q)
    assert torch.equal(first, regard.attend(q, q, q, softcap=2.0, backend="steps"))
    with regard.attention.backend("torch"):  # which would refuse the softcap
        assert torch.equal(compiled(q), first)


@pytest.mark.parametrize(("width", "size"), [(8, 1.0), (8, 1e4), (64, 1.0), (64, 1e3)])
def test_gradients_of_large_scores_err_no_more_than_eager_attentions(size, width):
    """The backward pass computes the weights again, and must not lose the digits of the scores."""
    made = torch.Generator().manual_seed(5)
    inputs = [torch.randn(1, 2, 300, width, generator=made) for _ in range(3)]
    inputs[0], inputs[1] = inputs[0] * size**0.5, inputs[1] * size**0.5 + 0.2 * size**0.5
    sinks, upstream = size * torch.tensor([1.0, 0.1]), torch.randn(1, 2, 300, width, generator=made)

    def found(dtype, name):
        given = [x.to(dtype).requires_grad_() for x in (*inputs, sinks)]
        output = regard.attend(*given[:3], mask=regard.causal, sinks=given[3], backend=name)
        return [output, *torch.autograd.grad(output, given, upstream.to(dtype))]

    right, eager = found(torch.float64, "steps"), found(torch.float32, "steps")
    for a, b, c in zip(found(torch.float32, "tiled"), eager, right, strict=True):
        unit = 8 * torch.finfo(torch.float32).eps * c.abs().max().item()
        assert truth.error(a, c) <= 2 * truth.error(b, c) + unit


def test_trace_shows_every_step():
    q, k, v, sinks = tensors(Sizes(2, 4, 2, 3, 5, 4, 6), 0)
    bias = torch.randn(3, 5)
    steps = trace(q, k, v, regard.tensor_mask(bias) & padding([5, 3]), scale=0.7, softcap=2.0, sinks=sinks)
    assert isinstance(steps, Steps)
    assert Steps._fields == ("scores", "scaled", "masked", "weights", "output")
    wide = k.repeat_interleave(2, 1)
    close = torch.testing.assert_close
    # The scores are the real ones, also of keys that will be masked.
    close(steps.scores, torch.einsum("bhtd,bhsd->bhts", q, wide))
    close(steps.scaled, 2 * torch.tanh(0.7 * steps.scores / 2))
    blocked = torch.arange(5) >= torch.tensor([5, 3]).view(2, 1, 1, 1)
    close(steps.masked, (steps.scaled + bias).masked_fill(blocked, -torch.inf))
    exp = steps.masked.exp()
    close(steps.weights, exp / (exp.sum(-1, keepdim=True) + sinks.exp().view(4, 1, 1)))
    close(steps.output, steps.weights @ v.repeat_interleave(2, 1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_dtypes_of_the_steps_and_of_the_results(dtype):
    q, k, v, sinks = tensors(Sizes(1, 2, 1, 3, 3, 4, 4), 0, dtype)
    steps = trace(q, k, v, causal, sinks=sinks.float())
    inner = torch.float64 if dtype == torch.float64 else torch.float32
    assert [x.dtype for x in steps] == [inner] * 4 + [dtype]
    assert [x.dtype for x in scaled_dot_product_attention(q, k, v)] == [dtype, dtype]


def test_scores_too_large_for_float16_are_no_trouble():
    q = k = v = torch.full((1, 1, 2, 64), 100.0, dtype=torch.float16)  # q · k is 640,000
    output, weights = scaled_dot_product_attention(q, k, v)
    assert torch.equal(output, v)
    assert torch.equal(weights, torch.full((1, 1, 2, 2), 0.5, dtype=torch.float16))


@pytest.mark.parametrize(
    "shape", [(2, 3, 2, 4, 4), (3, 2, 4, 4), (3, 1, 4, 4), (2, 1, 1, 1, 4), (1, 1, 2, 4, 4), (2, 4, 4)]
)
def test_a_tensor_mask_broadcasts_as_tensors_do(shape):
    q, k, v = (torch.randn(2, 3, 2, 4, 5) for _ in range(3))
    marks = (torch.rand(shape) < 0.6) | torch.eye(4, dtype=torch.bool)
    marks = marks[..., :1, :] if shape[-2] == 1 else marks
    output, weights = scaled_dot_product_attention(q, k, v, marks)
    assert torch.equal(weights > 0, marks.expand(2, 3, 2, 4, 4))
    assert output.shape == q.shape
