"""The Triton kernels on the CPU, interpreted, against float64. Run by test_triton.py in a process of its own.

Blocks are forced small, so that small sizes have empty, full and partial ones. `make test` runs every kernel;
their rarer inputs are for `make test-all`.
"""

from itertools import product

import pytest
import torch

from regard import causal, padding, prefix, rule, window
from regard.attention.backends import runs
from regard.attention.backends.problem import prepare
from regard.attention.backends.triton import (
    cells,
    column_sums,
    configs,
    launch,
    pool,
    row_reductions,
    span_pool,
)
from regard.attention.backends.triton.launch import KernelMap
from regard.attention.context_parallel.pieces import PartialOutput, piece_gradients, pieces
from regard.attention.context_parallel.rows import split_rows
from regard.attention.masks.views import Keys, Rows
from regard.attention.steps import trace
from regard.maps import Spans, kernels
from tests.attention.backends import interpreter  # noqa: F401 (first: it settles how Triton's kernels are defined)
from tests.gpu import cases
from tests.sampling import combine, share
from tests.truth import cells as true_cells
from tests.truth import statistics as truth_of_rows

pytestmark = pytest.mark.filterwarnings(
    "ignore:invalid value:RuntimeWarning",
    "ignore:overflow:RuntimeWarning",
    "ignore:divide by zero:RuntimeWarning",
)

F32 = torch.float32
cases.DEVICE, cases.H, cases.G, cases.T, cases.S = "cpu", 2, 1, 36, 44
SIZES = {"more queries": (44, 30), "as many queries": (44, 44)}  # T and S of these cases, causal ones
BANDS = "full", "causal", "top left", "window", "narrow", "both sides", "alibi"
MASKS = cases.masks(window=20, behind=9, ahead=5, prefix=21, document=20, last=33)
MASKS |= dict.fromkeys(SIZES, causal)
OPTIONS = "causal", "prefix", "padding"  # under these masks with a soft cap and sink logits
ROWS, COLS = Spans([3, 8, 24], [4, 24, 36]), Spans.from_edges([0, 1, 2, 5, 30, 31, 36])


KERNELS = {
    "attention": lambda mask, options: cases.attention(
        mask, F32, 20, 5, {"softcap": 1.5, "scale": -0.4, "sinks": True} if options else {"sinks": True}
    ),
    "pool": lambda mask, options: cases.pool(mask, 4, 7, None, F32, 8),
    "spans": lambda mask, options: cases.span_pool(
        mask, "above 0" if options else "signed", F32, 8, ROWS, COLS
    ),
    "column sums": lambda mask, options: cases.weighted_received(mask, F32, 8, options),
    "rows": lambda mask, options: cases.row_reductions(mask, F32, 8, None, options, (5,)),
    "statistics": lambda mask, options: cases.statistics(mask, F32, 8, 0, options),
}

UNDER_MASKS = [(kernel, name) for n, kernel in enumerate(KERNELS) for name in share(MASKS, len(MASKS), 2 * n)]


@pytest.mark.parametrize(("kernel", "name"), UNDER_MASKS)
def test_a_kernel_does_what_it_does_on_a_gpu(kernel, name, monkeypatch):
    for field, size in zip("TS", SIZES.get(name, (36, 44)), strict=True):
        monkeypatch.setattr(cases, field, size)
    KERNELS[kernel](MASKS[name], name in OPTIONS)


@pytest.mark.parametrize(("name", "options"), share(product(BANDS, [False, True]), 14, turn=3))
def test_forward_with_cells(name, options):
    cases.forward_with_cells(MASKS[name], F32, 20, 5, options and name != "alibi", size=32)


@pytest.fixture(autouse=True)
def _maps_on_a_cpu_take_the_kernels(monkeypatch):
    def kernel_map(m):
        mask = m.mask if m.mask.band(*m.matrix[2:]) is not None else m.mask.simplified(m.matrix)
        served = KernelMap(m.q, m.k, m.lse, mask, m.scale, m.softcap)
        return served if m.dtype == F32 else None

    monkeypatch.setattr(kernels, "kernel_map", kernel_map)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    shapes = {"forward": (32, 16), "lists": (16, 32), "queries": (32, 16), "keys": (16, 32), "pool": (32, 16)}
    shapes |= {
        "statistics": (32, 16),
        "row statistics": (32, 16),
        "column sums": (16, 32),
        "row sums": (32, 16),
        "topk": (32, 16),
        "spans": (32, 16),
    }
    monkeypatch.setattr(runs, "MIN_PADDING", 8)  # several widths even at these sizes
    for module, name in ((span_pool, "MAX_BUFFER"), (cells, "MAX_SCRATCH")):
        monkeypatch.setattr(module, name, 1)  # the heads use it in turn
    monkeypatch.setattr(
        configs,
        "choose",
        lambda purpose, width, dtype: configs.KernelConfig(*shapes.get(purpose, (16, 16)), 4, 1),
    )


def draw(T, S, *, B=2, H=2, G=1, D=16, E=16, dtype=torch.float32):
    shapes = (B, H, T, D), (B, G, S, D), (B, G, S, E)
    return [torch.randn(shape).to(dtype) for shape in shapes]


def true_lse(masked, sinks=None):
    if sinks is not None:
        masked = torch.cat([masked, sinks.view(-1, 1, 1).expand(*masked.shape[:-1], 1)], -1)
    return torch.logsumexp(masked, -1)


def assert_near(result, truth, most):
    assert torch.equal(result.isinf(), truth.isinf())
    gap = (result.double() - truth).masked_fill(truth.isinf(), 0.0).abs().max().item()
    assert gap <= most, f"off by {gap:.1e}, more than {most:.1e}"


@pytest.mark.at_length("test_interpreted")
def test_forward_of_any_layout():
    """Half precision, strides that are not those of a plain tensor, and keys by tensor descriptor."""
    q = torch.randn(2, 44, 2, 16).half().transpose(1, 2)
    k, v = (torch.randn(2, 1, 60, 32).half()[..., :16] for _ in range(2))
    twisted = k.mT.contiguous().mT, v.repeat_interleave(2, -1)[..., ::2]
    truth = trace(q.double(), k.double(), v.double(), causal)
    for keys, values, tma in ((k, v, True), (*twisted, True), (*twisted, False)):
        assert torch.equal(keys, k)
        assert torch.equal(values, v)
        problem = prepare(q, keys, values, mask=causal)
        with pytest.MonkeyPatch.context() as patch:
            config = configs.KernelConfig(32, 16, 4, 1, tma)
            patch.setattr(configs, "choose", lambda *_, config=config: config)
            output, lse = launch.run(problem)
        assert_near(output, truth.output, 2e-3)
        assert_near(lse, true_lse(truth.masked), 1e-4)


@pytest.mark.at_length("test_interpreted")
@pytest.mark.parametrize("cols", share([64, 128], 2))
def test_forward_and_gradients_of_bits_in_words(cols, monkeypatch):
    """Rows of a tile that are whole words of 64 bits are loaded as such."""
    config = configs.KernelConfig(16, cols, 4, 1)
    monkeypatch.setattr(configs, "choose", lambda *_: config)
    mask = rule(lambda b, h, q, k: (q * q + 3 * k + h) % 7 < 3)
    q, k, v = (x.requires_grad_() for x in draw(20, 150, B=1))
    output, lse = launch.run(prepare(q, k, v, mask=mask))
    grad = torch.randn_like(output)
    steps = trace(q.double(), k.double(), v.double(), mask)
    assert_near(output, steps.output, 2e-6)
    assert_near(lse, true_lse(steps.masked), 2e-6)
    truth = torch.autograd.grad(steps.output, (q, k, v), grad.double())
    for found, true in zip(torch.autograd.grad(output, (q, k, v), grad), truth, strict=True):
        assert_near(found, true.double(), 5e-6)


@pytest.mark.at_length("test_interpreted")
@pytest.mark.parametrize(
    "mask", share([padding([0, 21]), window(9, ahead=3), causal & padding([30, 21])], 3), ids=str
)
def test_forward_and_gradients_of_keys_nobody_sees(mask):
    q, k, v = draw(20, 40)
    unseen = ~mask.tile(slice(0, 20), slice(0, 40), (2, 2, 20, 40)).expand(2, 2, 20, 40).any(-2).any(1)
    assert unseen.any()
    found = []
    for bad_key, bad_value in ((0.0, 0.0), (torch.nan, torch.inf)):
        k, v = (x.masked_fill(unseen[:, None, :, None], bad) for x, bad in ((k, bad_key), (v, bad_value)))
        inputs = [x.detach().requires_grad_() for x in (q, k, v)]
        output, lse = launch.run(prepare(*inputs, mask=mask))
        found.append([output, lse, *torch.autograd.grad(output.sum(), inputs)])
    for clean, poisoned in zip(*found, strict=True):
        assert torch.equal(clean, poisoned)


def square(mask):
    """The map of 64 queries and as many keys under a mask, and its steps in float64."""
    q, k, _ = draw(64, 64, B=1)
    steps = trace(q.double(), k.double(), k.double(), mask)
    return KernelMap(q, k, true_lse(steps.masked).float(), mask, 0.25, None), steps


def with_nan():
    """A map of two texts in which keys that no query sees hold NaN, all those of the first text."""
    q, k, _ = draw(20, 60)
    k[0], k[1, :, 21:] = torch.nan, torch.nan
    mask = padding([0, 21])
    lse = true_lse(trace(q.double(), k.double(), k.double(), mask).masked).float()
    return KernelMap(q, k, lse, mask, 0.25, None)


FILLING = (2, 4), (8, 2), (2, 1), (64, 32)  # numbers of bins that fill blocks


@pytest.mark.at_length("test_interpreted")
@pytest.mark.parametrize(
    ("mask", "bins"),
    share(product([causal, causal & window(20), window(9, ahead=30)], FILLING), 6),
    ids=str,
)
def test_pool_of_bins_that_fill_blocks(mask, bins):
    cases.pool(mask, *bins, 64, F32, 16)


@pytest.mark.parametrize("mask", share([causal, window(9, ahead=5), padding([21])], 3), ids=str)
def test_weights_of_pairs_are_summed(mask):
    m, steps = square(mask)
    ids, *key_ids = torch.randint(0, 3, (3, 1, 64))
    both = row_reductions.pair_sums(m, ids, torch.stack(key_ids))
    for found, table in zip(both, key_ids, strict=True):
        counts = (ids[:, :, None] == table[:, None]) & torch.ones(64, 64).tril(-1).bool()
        assert_near(found, (steps.weights * counts[:, None]).sum(-1), 8e-6)


@pytest.mark.at_length("test_interpreted")
def test_topk_of_equal_weights():
    q, k = torch.zeros(1, 2, 40, 8), torch.zeros(1, 1, 40, 8)
    lse = torch.arange(1.0, 41.0).log().expand(1, 2, 40).contiguous()
    weights, keys = row_reductions.topk(KernelMap(q, k, lse, causal, 1.0, None), 5)
    assert_near(weights[0, 0, :, 0], 1.0 / torch.arange(1.0, 41.0).double(), 1e-6)
    for row, of_row in enumerate(keys[0, 0].tolist()):
        seen = [i for i in of_row if i >= 0]
        assert len(seen) == min(5, row + 1)
        assert seen == sorted(set(seen))
        assert seen[-1] <= row


@pytest.mark.parametrize(("dtype", "softcap"), combine([torch.float32, torch.float16], [None, 1.5]))
def test_diagonal(dtype, softcap):
    q, k, _ = draw(70, 70, D=20, dtype=dtype)
    steps = trace(q.double(), k.double(), k.double(), causal, softcap=softcap)
    lse = true_lse(steps.masked)
    found = row_reductions.diagonal(q[:, :, 1:], k[:, :, :-1], lse[:, :, 1:], 20**-0.5, softcap)
    assert_near(found, steps.weights.diagonal(-1, -2, -1), 2e-7)
    empty = torch.full_like(lse, -torch.inf)
    assert (row_reductions.diagonal(q, k, empty, 20**-0.5, softcap) == 0).all()


def true_statistics(weights, masked, first_position):
    return *truth_of_rows(weights, first_position), masked.amax(-1)


@pytest.mark.parametrize(
    ("mask", "bins"), share(product([causal, causal & window(20), causal | prefix(5)], FILLING), 12), ids=str
)
def test_summary_of_bins_that_fill_blocks(mask, bins):
    """Cells and statistics from one pass: bins of several to a block, of one block, and of several blocks."""
    m, steps = square(mask)
    found = pool.summary(m, 0, *bins)
    truths = *true_cells(steps.weights, *bins), *true_statistics(steps.weights, steps.masked, 0)
    for result, truth in zip(found, truths, strict=True):
        assert_near(result, truth, 1e-6 + 4e-6 * truth.abs().max().item())
    for alone, result in zip(row_reductions.statistics(m, 0), found[2:], strict=True):
        assert_near(alone, result.double(), 2e-6 * result.abs().max().item())


def test_summary_of_unequal_bins_is_none():
    q, k, _ = draw(60, 64, B=1, D=16)
    m = KernelMap(q, k, torch.zeros(1, 2, 60), causal, 0.25, None)
    assert pool.summary(m, 4, 7, 4) is None
    assert pool.summary(m, 4, 2, 3) is None


@pytest.mark.at_length("test_interpreted")
@pytest.mark.parametrize("mask", share([causal, causal & window(9), causal | prefix(5)], 3), ids=str)
def test_statistics_and_pool_of_some_rows_and_keys(mask):
    """Rows and keys cut out of a map: a band stays a band, at another place."""
    q, k, _ = draw(60, 60)
    whole = trace(q.double(), k.double(), k.double(), mask)
    lse = true_lse(whole.masked).float()
    rows = Rows(mask, 21, 60)
    found = row_reductions.statistics(KernelMap(q[:, :, 21:], k, lse[:, :, 21:], rows, 0.25, None), 21)
    truths = true_statistics(whole.weights[:, :, 21:], whole.masked[:, :, 21:], 21)
    for result, truth in zip(found, truths, strict=True):
        assert_near(result, truth, 4e-6 * truth.abs().max().item())
    for first, last in ((0, 16), (30, 60), (17, 34)):
        part, cut = Keys(rows, first, 60), whole.weights[:, :, 21:, first:last]
        found = pool.pool(
            KernelMap(q[:, :, 21:], k[:, :, first:last], lse[:, :, 21:], part, 0.25, None), 13, 8
        )
        for result, truth in zip(found, true_cells(cut, 13, 8), strict=True):
            assert_near(result, truth, 2e-6)


@pytest.mark.at_length("test_interpreted")
def test_keys_nobody_sees_may_hold_nan():
    m, w = with_nan(), torch.randn(2, 2, 20)
    assert torch.isfinite(row_reductions.row_sums(m)).all()
    weights, keys = row_reductions.topk(m, 4)
    assert torch.isfinite(weights).all()
    assert (keys[0] == -1).all()
    assert (keys[1] >= 0).all()
    for result in row_reductions.statistics(m, 40):
        assert not result.isnan().any()
    w[:, :, 3] = 0.0  # nor matters a query of no weight
    of_nan = m._replace(q=m.q.clone().index_fill_(2, torch.tensor([3]), torch.nan))
    assert torch.isfinite(column_sums.column_sums(of_nan, w)).all()
    m.k[1, :, 3] = torch.nan  # and one that all see
    for result in row_reductions.statistics(m, 40):
        assert torch.isnan(result[1]).all()
        assert not torch.isnan(result[0]).any()


@pytest.mark.at_length("test_interpreted")
@pytest.mark.parametrize("size", share([1.0, 1e3, 1e4], 3))
def test_large_scores_err_no_more_than_eager_attention(size):
    """Forward and backward, with sinks as large as the scores."""
    q, k, v = draw(44, 60, D=8, E=8)
    inputs = [q * size**0.5, (k + 0.3) * size**0.5, v, size * torch.tensor([0.5, 0.1])]
    upstream = torch.randn(2, 2, 44, 8)
    found = []
    for dtype in (torch.float32, torch.float32, torch.float64):
        a, b, c, sinks = (x.to(dtype).requires_grad_() for x in inputs)
        if found:
            output = trace(a, b, c, causal, sinks=sinks).output
        else:
            output = launch.run(prepare(a, b, c, mask=causal, sinks=sinks))[0]
        found.append([output, *torch.autograd.grad(output, (a, b, c, sinks), upstream.to(dtype))])
    for ours, eager, right in zip(*found, strict=True):
        theirs = (eager.double() - right).abs().max().item()
        assert_near(ours, right, 3 * theirs + 1e-6 * right.abs().max().item())


@pytest.mark.at_length("test_interpreted")
@pytest.mark.parametrize("case", share(["causal", "window", "documents"], 3))
def test_pieces_of_a_ring(case):
    """The rows of one of two ranks: merged pieces, and gradients from the lse of the whole rows."""
    mask, S = MASKS[case], cases.S
    q, k, v = draw(S, S)
    runs = split_rows(S, 2, "head-tail")
    rows = torch.tensor([i for run in runs[1] for i in run])
    problem = prepare(q[:, :, rows], k, v)
    partial, grad = PartialOutput.empty(problem), torch.randn(2, 2, len(rows), 16)
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    dq = torch.zeros_like(problem.q)
    blocks = [torch.tensor([i for run in of_rank for i in run]) for of_rank in runs]
    parts = [
        (piece, piece.of(problem, k[:, :, block], v[:, :, block]), block[piece.keys])
        for of_rank, block in zip(runs, blocks, strict=True)
        for piece in pieces(mask, S, S, runs[1], of_rank)
    ]
    for piece, part, _ in parts:
        assert launch.unsupported_reason(part) is None
        partial.add_(piece, part, "triton")
    for piece, part, keys in parts:
        own = (x[:, :, piece.rows] for x in (grad, *partial))
        piece_dq, piece_dk, piece_dv = piece_gradients(part, *own)
        dq[:, :, piece.rows] += piece_dq
        dk[:, :, keys] += piece_dk
        dv[:, :, keys] += piece_dv

    exact = [x.double().requires_grad_() for x in (q, k, v)]
    right = trace(*exact, mask)
    upstream = torch.zeros_like(right.output)
    upstream[:, :, rows] = grad.double()
    assert_near(partial.output, right.output[:, :, rows], 1e-5)
    assert_near(partial.lse, true_lse(right.masked)[:, :, rows], 1e-5)
    true_dq, true_dk, true_dv = torch.autograd.grad(right.output, exact, upstream)
    for found, true in ((dq, true_dq[:, :, rows]), (dk, true_dk), (dv, true_dv)):
        assert_near(found, true, 2e-5)
