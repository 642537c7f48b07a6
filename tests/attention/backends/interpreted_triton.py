"""The Triton kernels on the CPU, interpreted, against float64. Run by test_triton.py in a process of its own.

Blocks are forced small, so that small sizes have empty, full and partial ones. `make test` runs every kernel;
their rarer inputs are for `make test-all`.
"""

from itertools import product

import pytest
import torch

import regard
from regard import causal, chunks, documents, padding, prefix, rule, tensor_mask, window
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
from tests.attention.backends import interpreter  # noqa: F401 (first: it settles how Triton's kernels are defined)
from tests.sampling import combine, share

pytestmark = pytest.mark.filterwarnings(
    "ignore:invalid value:RuntimeWarning",
    "ignore:overflow:RuntimeWarning",
    "ignore:divide by zero:RuntimeWarning",
)

IDS = torch.tensor([[0] * 20 + [1] * 7 + [2] * 33, [5] * 48 + [6] * 12])  # (2, 60)
TABLE = torch.rand(2, 1, 44, 60, generator=torch.Generator().manual_seed(3)) < 0.4
# name: mask, queries, keys
CASES = {
    "full": (None, 40, 60),
    "causal": (causal, 60, 60),
    "causal, fewer queries": (causal, 44, 60),
    "causal, more queries": (causal, 60, 30),
    "top left": (causal.top_left, 44, 60),
    "window": (causal & window(20), 60, 60),
    "narrow window": (causal & window(3), 44, 60),
    "both sides": (window(9, ahead=5), 44, 60),
    "prefix": (causal | prefix(21), 44, 60),
    "documents": (documents(IDS) & causal, 44, 60),
    "padding": (padding([0, 33]), 40, 60),
    "chunks": (chunks(7), 44, 60),
    "heads differ": (rule(lambda b, h, q, k: (q + k + b + h) % 3 == 0), 44, 60),
    "table": (tensor_mask(TABLE), 44, 60),
    "not": (~chunks(16) & causal, 44, 60),
    "alibi": (regard.alibi(2) & causal, 44, 60),
}
# Interpreting is slow: two texts only where a mask tells them apart.
TEXTS = dict.fromkeys(CASES, 1) | dict.fromkeys(("documents", "padding", "heads differ", "table"), 2)


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


@pytest.mark.parametrize("case", share(CASES, 16, turn=8))
def test_forward(case):
    mask, T, S = CASES[case]
    q, k, v = draw(T, S, B=TEXTS[case])
    problem = prepare(q, k, v, mask=mask)
    assert launch.unsupported_reason(problem) is None
    output, lse = launch.run(problem)
    steps = trace(q.double(), k.double(), v.double(), mask)
    assert_near(output, steps.output, 2e-6)
    assert_near(lse, true_lse(steps.masked), 2e-6)


@pytest.mark.parametrize(
    ("case", "scale", "softcap", "sinks"),
    share(
        [
            ("full", 0.7, 1.5, True),
            ("full", 0.0, None, False),
            ("prefix", -0.4, 1.5, True),
            ("both sides", -0.4, None, True),
        ],
        2,
    ),
)
def test_forward_options(case, scale, softcap, sinks):
    mask, T, S = CASES[case]
    q, k, v = draw(T, S, B=TEXTS[case], D=20, E=5)
    options = {"scale": scale, "softcap": softcap, "sinks": torch.randn(2) if sinks else None}
    output, lse = launch.run(prepare(q, k, v, mask=mask, **options))
    options["sinks"] = options["sinks"].double() if sinks else None
    steps = trace(q.double(), k.double(), v.double(), mask, **options)
    assert_near(output, steps.output, 2e-6)
    assert_near(lse, true_lse(steps.masked, options["sinks"]), 2e-6)


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


@pytest.mark.parametrize(
    "case", share([case for case in CASES if case not in ("causal", "top left", "chunks", "not")], 12)
)
def test_gradients(case):
    mask, T, S = CASES[case]
    options = {"softcap": 1.5, "scale": 0.6} if case in ("both sides", "prefix") else {}
    inputs = [*draw(T, S, B=TEXTS[case], D=8, E=5), torch.randn(2)]
    upstream = torch.randn(TEXTS[case], 2, T, 5)
    results, truths = [], []
    for found, dtype in ((results, torch.float32), (truths, torch.float64)):
        q, k, v, sinks = (x.to(dtype).requires_grad_() for x in inputs)
        if dtype == torch.float32:
            output, lse = launch.run(prepare(q, k, v, mask=mask, sinks=sinks, **options))
            assert not lse.requires_grad
        else:
            output = trace(q, k, v, mask, sinks=sinks, **options).output
        found += torch.autograd.grad(output, (q, k, v, sinks), upstream.to(dtype))
    for result, truth in zip(results, truths, strict=True):
        assert_near(result, truth, 1e-6 + 4e-6 * truth.abs().max().item())


def reduced(case):
    """A case as the kernels that reduce a map take it, with the steps of the same attention in float64."""
    mask, T, S = CASES[case]
    q, k, _ = draw(T, S, B=TEXTS[case], D=8)
    softcap, sinks = (
        (2.0, torch.randn(2).double()) if case in ("causal", "prefix", "padding") else (None, None)
    )
    steps = trace(q.double(), k.double(), k.double(), mask, sinks=sinks, softcap=softcap)
    problem = prepare(q, k, k, mask=mask)
    assert launch.unsupported_map_reason(q, k, problem.mask) is None
    lse = true_lse(steps.masked, sinks).float()
    return KernelMap(q, k, lse, problem.mask, problem.scale, softcap), steps


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


def binned(weights, rows, cols):
    """Mass and peak of each bin, cut out of the whole matrix one by one."""
    T, S = weights.shape[-2:]
    mass, peak = weights.new_zeros(2, *weights.shape[:2], rows, cols)
    for i in range(rows):
        for j in range(cols):
            tile = weights[..., i * T // rows : (i + 1) * T // rows, j * S // cols : (j + 1) * S // cols]
            mass[..., i, j], peak[..., i, j] = tile.sum(-1).mean(-1), tile.amax((-2, -1))
    return mass, peak


@pytest.mark.parametrize(
    ("case", "rows", "cols"),
    share(
        [
            ("causal", 4, 15),
            ("causal", 22, 60),
            ("both sides", 1, 2),
            ("both sides", 22, 60),
            ("prefix", 11, 3),
            ("prefix", 4, 15),
            ("padding", 7, 9),
            ("heads differ", 11, 30),
            ("alibi", 4, 4),
        ],
        5,
    ),
)
def test_pool(case, rows, cols):
    m, steps = reduced(case)
    for result, truth in zip(pool.pool(m, rows, cols), binned(steps.weights, rows, cols), strict=True):
        assert_near(result, truth, 2e-6)


@pytest.mark.at_length("test_interpreted")
@pytest.mark.parametrize(
    ("mask", "rows", "cols"),
    [
        (mask, *bins)
        for mask, bins in share(
            product([causal, causal & window(20), window(9, ahead=30)], [(2, 4), (8, 2), (2, 1), (64, 32)]), 6
        )
    ],
    ids=str,
)
def test_pool_of_bins_that_fill_blocks(rows, cols, mask):
    m, steps = square(mask)
    for result, truth in zip(pool.pool(m, rows, cols), binned(steps.weights, rows, cols), strict=True):
        assert_near(result, truth, 2e-6)


# Spans with and without gaps: equal, single positions beside a long one, some of 16, which fills a block.
SPANS = {
    "edges": [(0, 1), (1, 2), (2, 5), (5, 30), (30, 31), (31, 40)],
    "gaps": [(3, 4), (7, 9), (11, 37)],
    "blocks": [(8, 24), (24, 40)],
    "long": [(1, 40)],
}


@pytest.mark.parametrize(
    ("case", "rows", "cols"),
    share(
        [
            ("full", "blocks", "edges"),
            ("causal", "edges", "edges"),
            ("causal, fewer queries", "gaps", "edges"),
            ("window", "gaps", "blocks"),
            ("both sides", "long", "gaps"),
            ("prefix", "edges", "gaps"),
            ("heads differ", "blocks", "edges"),
            ("alibi", "gaps", "long"),
        ],
        8,
    ),
)
def test_pool_over_spans_with_gains(case, rows, cols, monkeypatch):
    monkeypatch.setattr(runs, "MIN_PADDING", 8)  # several widths even at these sizes
    monkeypatch.setattr(span_pool, "MAX_BUFFER", 1)  # the heads use the buffer in turn
    m, steps = reduced(case)
    B, H, _, S = m.matrix
    bounds = [torch.tensor(SPANS[name]).T for name in (rows, cols)]
    for gain in (None, torch.rand(B, H, S), torch.randn(B, H, S)):
        entries = steps.weights if gain is None else steps.weights * gain.double().unsqueeze(-2)
        found = pool.pool(m, *bounds, gain)
        parts = [[entries[..., a:b, c:d] for c, d in SPANS[cols]] for a, b in SPANS[rows]]
        mass = torch.stack([torch.stack([x.sum(-1).mean(-1) for x in row], -1) for row in parts], -2)
        assert_near(found[0], mass, 4e-6)
        peak = torch.stack([torch.stack([largest(x.flatten(-2)) for x in row], -1) for row in parts], -2)
        assert_near(found[1], peak, 4e-6)


def largest(x):
    return x.gather(-1, x.abs().argmax(-1, keepdim=True)).squeeze(-1)


@pytest.mark.parametrize("case", share(CASES, 16, turn=9))
def test_column_sums(case):
    m, steps = reduced(case)
    B, H, T, _ = m.matrix
    few = torch.tensor([1, 2, 17, 29])
    for rows in (None, few):
        w = 1e3 * torch.randn(B, H, T)
        if rows is not None:
            w[:, :, [i for i in range(T) if i not in few]] = 0.0
        found = column_sums.column_sums(m, w, rows)
        truth = (w.double().unsqueeze(-2) @ steps.weights).squeeze(-2)
        assert_near(found, truth, 1e-6 * w.abs().sum(-1).max().item())


@pytest.mark.at_length("test_interpreted")
def test_column_sums_beside_rows_and_keys_that_hold_nan():
    m, w = with_nan(), torch.randn(2, 2, 20)
    m.q[:, :, 3] = torch.nan
    w[:, :, 3] = 0.0
    assert torch.isfinite(column_sums.column_sums(m, w)).all()


@pytest.mark.parametrize("case", share(CASES, 16))
def test_row_sums_under_a_narrower_mask_and_times_gains(case):
    m, steps = reduced(case)
    B, H, T, S = m.matrix
    for narrow in (window(5), prefix(7)):
        joint = m.mask & narrow
        under = steps.weights * joint.tile(slice(0, T), slice(0, S), m.matrix)
        assert_near(row_reductions.row_sums(m._replace(mask=joint)), under.sum(-1), 2e-6)
    u = torch.randn(B, H, S)
    found = row_reductions.row_sums(m, u)
    assert_near(found, (steps.weights @ u.double().unsqueeze(-1)).squeeze(-1), 8e-6)
    if T <= S:  # every query is one of the positions
        ids, *key_ids = torch.randint(0, 3, (3, B, S))
        both = row_reductions.pair_sums(m, ids, torch.stack(key_ids))
        for found, table in zip(both, key_ids, strict=True):
            counts = (ids[:, S - T :, None] == table[:, None]) & torch.ones(T, S).tril(S - T - 1).bool()
            assert_near(found, (steps.weights * counts[:, None]).sum(-1), 8e-6)


@pytest.mark.parametrize("case", share(CASES, 16, turn=1))
def test_topk(case):
    m, steps = reduced(case)
    for count in (1, 11) if case in ("causal", "prefix") else (11,):
        weights, keys = row_reductions.topk(m, count)
        assert_near(weights, steps.weights.topk(count).values, 2e-6)
        assert torch.equal(keys == -1, weights == 0)
        # Each key is named once, and has the weight that stands beside it.
        chosen = torch.zeros_like(steps.weights).scatter_add_(-1, keys.clamp(min=0), weights.double())
        times = torch.zeros_like(steps.weights).scatter_add_(-1, keys.clamp(min=0), (keys >= 0).double())
        assert times.max() <= 1
        assert_near(chosen, steps.weights * times, 2e-6)


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


@pytest.mark.at_length("test_interpreted")
def test_row_sums_and_topk_beside_keys_that_hold_nan():
    m = with_nan()
    assert torch.isfinite(row_reductions.row_sums(m)).all()
    weights, keys = row_reductions.topk(m, 4)
    assert torch.isfinite(weights).all()
    assert (keys[0] == -1).all()
    assert (keys[1] >= 0).all()


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
    T, S = weights.shape[-2:]
    back = torch.arange(T)[:, None] + first_position - torch.arange(S)
    return torch.special.entr(weights).sum(-1), (weights * back).sum(-1), weights.sum(-2), masked.amax(-1)


@pytest.mark.parametrize("case", share(CASES, 16, turn=10))
def test_statistics(case):
    m, steps = reduced(case)
    _, _, T, S = m.matrix
    found = row_reductions.statistics(m, S - T)
    for result, truth in zip(found, true_statistics(steps.weights, steps.masked, S - T), strict=True):
        # A row without visible keys has −inf for its largest score.
        assert torch.equal(result == -torch.inf, truth == -torch.inf)
        result, truth = (x.masked_fill(truth == -torch.inf, 0.0) for x in (result, truth))
        assert_near(result, truth, 1e-6 + 4e-6 * truth.abs().max().item())
    if case in ("causal", "prefix"):
        for alone, result in zip(row_reductions.row_statistics(m, S - T), found[:2], strict=True):
            assert torch.equal(alone, result)


@pytest.mark.parametrize(
    ("mask", "rows", "cols"),
    [
        (mask, *bins)
        for mask, bins in share(
            product([causal, causal & window(20), causal | prefix(5)], [(2, 4), (8, 2), (2, 1), (64, 32)]), 6
        )
    ],
    ids=str,
)
def test_summary_of_bins_that_fill_blocks(rows, cols, mask):
    """Cells and statistics from one pass: bins of several to a block, of one block, and of several blocks."""
    m, steps = square(mask)
    found = pool.summary(m, 0, rows, cols)
    truths = *binned(steps.weights, rows, cols), *true_statistics(steps.weights, steps.masked, 0)
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
        for result, truth in zip(found, binned(cut, 13, 8), strict=True):
            assert_near(result, truth, 2e-6)


@pytest.mark.at_length("test_interpreted")
def test_statistics_of_keys_nobody_sees():
    m = with_nan()
    for result in row_reductions.statistics(m, 40):
        assert not result.isnan().any()
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
    mask, _, S = CASES[case]
    q, k, v = draw(S, S, B=TEXTS[case])
    runs = split_rows(S, 2, "head-tail")
    rows = torch.tensor([i for run in runs[1] for i in run])
    problem = prepare(q[:, :, rows], k, v)
    partial, grad = PartialOutput.empty(problem), torch.randn(TEXTS[case], 2, len(rows), 16)
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


@pytest.mark.parametrize(
    ("case", "size"),
    share([("causal, fewer queries", 32), ("full", 64), ("window", 32), ("both sides", 64)], 4),
)
def test_forward_with_cells(case, size, monkeypatch):
    """Output, lse and the weights pooled into cells, from one pass; the heads use the scratch in turn."""
    mask, T, S = CASES[case]
    q, k, v = draw(T, S, B=1)
    monkeypatch.setattr(cells, "MAX_SCRATCH", 1)
    output, lse, pooled = launch.run_with_cells(prepare(q, k, v, mask=mask), size)
    steps = trace(q.double(), k.double(), v.double(), mask)
    assert_near(output, steps.output, 2e-6)
    assert_near(lse, true_lse(steps.masked), 2e-6)
    for found, truth in zip(pooled[1:], cells_of(steps.weights, size), strict=True):
        assert_near(found, truth, 2e-6)


@pytest.mark.at_length("test_interpreted")
def test_forward_with_cells_and_options():
    """A negative scale, a soft cap, sink logits, odd widths, and queries that see no key."""
    mask, T, S = CASES["causal, more queries"]
    q, k, v = draw(T, S, B=1, D=20, E=5)
    options, sinks = {"scale": -0.4, "softcap": 1.5}, torch.randn(2)
    _, _, pooled = launch.run_with_cells(prepare(q, k, v, mask=mask, sinks=sinks, **options), 32)
    weights = trace(q.double(), k.double(), v.double(), mask, sinks=sinks.double(), **options).weights
    for found, truth in zip(pooled[1:], cells_of(weights, 32), strict=True):
        assert_near(found, truth, 2e-6)


def cells_of(weights, size):
    """The mean row mass and the largest weight of cells of size × size, the last of which may be smaller."""
    cells = [row.split(size, -1) for row in weights.split(size, -2)]
    mass = [torch.stack([x.sum(-1).mean(-1) for x in row], -1) for row in cells]
    most = [torch.stack([x.amax((-1, -2)) for x in row], -1) for row in cells]
    return torch.stack(mass, -2), torch.stack(most, -2)
