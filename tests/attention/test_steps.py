"""The readable oracle against float64 truth: outputs, gradients at every dtype, and the exact properties."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard import causal, padding, rule, scaled_dot_product_attention
from regard.attention.steps import Steps, trace
from tests import truth
from tests.sampling import combine, examples
from tests.strategies import DrawnMask, Sizes, Tensors, dtypes, sized_masks, tensors

# The largest error may be this much of PyTorch's own, which gets one unit in the last place on top. Both sum
# the same few products in another order, so on a single draw of numbers, or in a gradient whose terms cancel,
# either comes out ahead by luck; over several draws and all gradients together the luck evens out.
NO_WORSE = 1.5
DRAWS = 12  # few tensors of a few numbers: with four, luck alone reached 1.8

options = st.fixed_dictionaries(
    {
        "scale": st.sampled_from([None, None, 0.3, 1.0]),
        "softcap": st.sampled_from([None, None, 1.5, 30.0]),
        "sinks": st.booleans(),
    }
)
seeds = st.integers(0, 2**20)


def given_options(chosen: dict, made: Tensors) -> dict:
    return chosen | {"sinks": made.sinks if chosen["sinks"] else None}


def wanting_gradients(made: Tensors) -> Tensors:
    return Tensors(*(x.detach().clone().requires_grad_() for x in made))


def torchs_own(made: Tensors, drawn: DrawnMask, *, scale, softcap, sinks) -> torch.Tensor:
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


def results(drawn: DrawnMask, chosen: dict, dtype: torch.dtype, seed: int) -> dict[str, list[torch.Tensor]]:
    """The output and each gradient, three times: by truth in float64, by us and by PyTorch at the dtype."""
    made = tensors(drawn.n, seed, dtype)
    seen = drawn.allowed().any(-1, keepdim=True)  # (B, H, T, 1)
    upstream = torch.randn(*made.q.shape[:-1], drawn.n.E).to(dtype) * seen
    exact, ours, torchs = (
        wanting_gradients(Tensors(*(x.to(kind) for x in made))) for kind in (torch.float64, dtype, dtype)
    )
    outputs = [
        truth.attention(
            *exact[:3], drawn.allowed(), bias=drawn.score_bias(), **given_options(chosen, exact)
        ).output,
        scaled_dot_product_attention(*ours[:3], drawn.mask, **given_options(chosen, ours))[0],
        torchs_own(torchs, drawn, **given_options(chosen, torchs)),
    ]
    assert outputs[1].dtype == dtype
    assert (outputs[1].masked_select(~seen) == 0).all(), "a query that may look at nothing gets zeros"
    found = {"output": [output * seen for output in outputs]}
    for output, inputs in zip(outputs, (exact, ours, torchs), strict=True):
        for name, gradient in zip(
            Tensors._fields, truth.gradients(output, list(inputs), upstream), strict=True
        ):
            found.setdefault(name, []).append(gradient)
    assert all(three[1].isfinite().all() for three in found.values())
    return found


def compare(drawn: DrawnMask, chosen: dict, dtype: torch.dtype, seed: int) -> dict[str, float]:
    """Ratio to PyTorch's error for the output and for the gradients together, over DRAWS draws."""
    draws = [results(drawn, chosen, dtype, seed + i) for i in range(DRAWS)]
    ratios = {}
    for group in (["output"], list(Tensors._fields)):
        exact, ours, torchs = (
            torch.cat([draw[name][i].flatten() for draw in draws for name in group]) for i in range(3)
        )
        ratios[" ".join(group)] = truth.ratio_to_torch(ours, torchs, exact)
    return ratios


@settings(max_examples=examples(40))
@given(sized_masks(), options, dtypes, seeds)
def test_no_further_from_the_truth_than_pytorch(drawn, chosen, dtype, seed):
    ratios = compare(drawn, chosen, dtype, seed)
    assert max(ratios.values()) <= NO_WORSE, ratios


@pytest.mark.parametrize(
    ("dtype", "softcap"), combine([torch.float32, torch.bfloat16, torch.float16], [None, 20.0]), ids=str
)
def test_no_further_from_the_truth_at_a_real_width(dtype, softcap):
    n = Sizes(B=1, H=4, G=2, T=8, S=24, D=64, E=64)
    drawn = DrawnMask(causal, n, lambda b, h, i, j: j <= i + 16)
    ratios = compare(drawn, {"scale": None, "softcap": softcap, "sinks": True}, dtype, seed=1)
    assert max(ratios.values()) <= NO_WORSE, ratios


@given(sized_masks(), options, seeds)
def test_float64_is_the_truth_to_the_last_places(drawn, chosen, seed):
    made = tensors(drawn.n, seed, torch.float64)
    exact = truth.attention(
        *made[:3], drawn.allowed(), bias=drawn.score_bias(), **given_options(chosen, made)
    )
    output, weights = scaled_dot_product_attention(*made[:3], drawn.mask, **given_options(chosen, made))
    torch.testing.assert_close(output, exact.output, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(weights, exact.weights, rtol=1e-12, atol=1e-13)
    if not chosen["sinks"]:
        sums = drawn.allowed().any(-1).double()
        torch.testing.assert_close(weights.sum(-1), sums, rtol=1e-14, atol=1e-14)


@given(sized_masks(most=4), options, seeds)
def test_gradcheck(drawn, chosen, seed):
    made = wanting_gradients(tensors(drawn.n, seed, torch.float64))

    def run(q, k, v, sinks):
        chosen_now = chosen | {"sinks": sinks if chosen["sinks"] else None}
        return scaled_dot_product_attention(q, k, v, drawn.mask, **chosen_now)

    assert torch.autograd.gradcheck(run, tuple(made), fast_mode=True)


@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, -torch.inf])], ids=["plain", "sinks"])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_a_query_that_may_look_at_nothing_gets_zeros_and_finite_gradients(sinks, softcap):
    made = wanting_gradients(tensors(Sizes(1, 2, 1, 4, 3, 4, 4), 0))
    nobody = rule(lambda b, h, q, k: (q > 0) & (k <= q))  # queries 0 and 1 stand at positions −1 and 0
    output, weights = scaled_dot_product_attention(*made[:3], nobody, sinks=sinks, softcap=softcap)
    assert (output[:, :, :2] == 0).all()
    assert (weights[:, :, :2] == 0).all()
    assert (output[:, :, 2:] != 0).all()
    output.sum().backward()
    assert all(x.grad.isfinite().all() for x in made[:3])
    assert (made.q.grad[:, :, :2] == 0).all()
    assert made.q.grad[:, :, 2:].abs().max() > 0


@settings(max_examples=examples(100))
@given(
    drawn=sized_masks(),
    poison=st.sampled_from([torch.nan, torch.inf, -torch.inf]),
    softcap=st.sampled_from([None, 2.0]),
    seed=seeds,
    sunk=st.booleans(),
)
def test_what_nobody_may_look_at_never_matters(drawn, poison, softcap, seed, sunk):
    clean = wanting_gradients(tensors(drawn.n, seed))
    group, allowed = drawn.n.H // drawn.n.G, drawn.allowed()
    unseen = ~allowed.any(-2).unflatten(1, (drawn.n.G, group)).any(2)  # (B, G, S): by no query of no head
    blind = ~allowed.any(-1)  # (B, H, T)
    dirty = wanting_gradients(
        Tensors(
            clean.q.masked_fill(blind[..., None], poison),
            clean.k.masked_fill(unseen[..., None], poison),
            clean.v.masked_fill(unseen[..., None], poison),
            clean.sinks,
        )
    )
    results = []
    for made in (clean, dirty):
        sinks = made.sinks if sunk else None
        output, weights = scaled_dot_product_attention(*made[:3], drawn.mask, softcap=softcap, sinks=sinks)
        upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
        results.append([output, weights, *truth.gradients(output, list(made), upstream)])
    for before, after in zip(*results, strict=True):
        assert torch.equal(before, after)


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
    "n",
    [
        Sizes(2, 2, 1, 0, 3, 4, 5),
        Sizes(2, 2, 1, 3, 0, 4, 5),
        Sizes(0, 2, 1, 3, 3, 4, 5),
        Sizes(1, 0, 0, 3, 3, 4, 5),
        Sizes(1, 2, 2, 0, 0, 4, 0),
    ],
    ids=["no queries", "no keys", "no batch", "no heads", "nothing at all"],
)
@pytest.mark.parametrize(
    "mask", [None, causal, rule(lambda b, h, q, k: (b + h + q) >= k), torch.zeros(1, 1)], ids=str
)
def test_empty_sizes(n, mask):
    made = wanting_gradients(tensors(n, 0))
    output, weights = scaled_dot_product_attention(*made[:3], mask, sinks=made.sinks, dropout=0.1)
    assert output.shape == (n.B, n.H, n.T, n.E)
    assert weights.shape == n.matrix
    assert (output == 0).all()
    output.sum().backward()


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


class TestDropout:
    n = Sizes(1, 2, 1, 6, 6, 4, 4)

    def test_zero_changes_nothing_and_draws_nothing(self):
        q, k, v, _ = tensors(self.n, 0)
        state = torch.get_rng_state()
        first, second = (scaled_dot_product_attention(q, k, v, dropout=0.0) for _ in range(2))
        assert torch.equal(first[0], second[0])
        assert torch.equal(state, torch.get_rng_state())

    def test_one_drops_everything(self):
        made = wanting_gradients(tensors(self.n, 0))
        output, weights = scaled_dot_product_attention(*made[:3], dropout=1.0)
        assert (output == 0).all()
        assert (weights == 0).all()
        output.sum().backward()
        assert (made.q.grad == 0).all()

    def test_weights_are_dropped_or_scaled_and_used_for_the_output(self):
        q, k, v, _ = tensors(self.n, 0)
        _, plain = scaled_dot_product_attention(q, k, v, causal)
        output, dropped = scaled_dot_product_attention(q, k, v, causal, dropout=0.25)
        kept = dropped != 0
        assert kept.any()
        assert (~kept & (plain > 0)).any()
        torch.testing.assert_close(dropped[kept], plain[kept] / 0.75)
        torch.testing.assert_close(output, dropped @ v.repeat_interleave(2, 1))
