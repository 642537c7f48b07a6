"""What the Triton kernels must do on a real GPU: plain functions that raise, so they need no test runner.

Errors are judged against float64 and as a ratio to what PyTorch's own kernel errs at that dtype.
"""

import math
from functools import partial
from itertools import product
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import regard
import regard.recorder.certificates.output_comparison as certify
from regard.attention.backends import fused_attention
from regard.attention.backends.plan import find_plan
from regard.attention.backends.problem import prepare
from regard.attention.backends.triton import launch
from regard.attention.backends.triton import pool as triton_pool
from regard.attention.masks.base import full
from regard.attention.masks.interval import Interval
from regard.attention.masks.rule_mask import Rule
from regard.attention.steps import trace
from regard.maps import Spans
from regard.maps.tile_passes.kept_overview import cell_size
from regard.recorder.certificates import row_products
from tests.gpu.checker_cases import checker_cases
from tests.gpu.head_cases import head_cases
from tests.gpu.intervention_cases import intervention_cases
from tests.gpu.policy_cases import policy_cases
from tests.truth import cells as true_cells
from tests.truth import statistics as true_statistics

DEVICE = "cuda"  # the interpreted kernels run the same checks on a CPU, with smaller numbers than these
H, G, T, S = 4, 2, 300, 335  # query heads and key/value heads, queries and keys
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
NEAR = 2.0  # times PyTorch's own error


def masks(window=70, behind=40, ahead=90, prefix=100, document=50, last=200):
    ids = torch.arange(S).div(document, rounding_mode="floor").expand(2, S) + torch.tensor([[0], [7]])
    table = torch.rand(2, H, T, S, generator=torch.Generator().manual_seed(1)) < 0.3
    return {
        "full": full,
        "causal": regard.causal,
        "top left": regard.causal.top_left,
        "window": regard.causal & regard.window(window),
        "narrow": regard.causal & regard.window(3),
        "both sides": regard.window(behind, ahead=ahead),
        "prefix": regard.causal | regard.prefix(prefix),
        "documents": regard.causal & regard.documents(ids),
        "padding": regard.padding([0, last]),
        "chunks": regard.chunks(document + 14),
        "heads differ": regard.rule(lambda b, h, q, k: (q + k + b) % (h + 2) == 0),
        "table": regard.tensor_mask(table),
        "alibi": regard.causal & regard.alibi(H),
    }


def each(title, check, *choices, **options):
    """A check with every combination of arguments; a tuple of them is one choice."""
    named = [x.items() if isinstance(x, dict) else [(str(value), value) for value in x] for x in choices]
    for combination in product(*named):
        arguments = [part for _, x in combination for part in (x if isinstance(x, tuple) else (x,))]
        yield ", ".join((title, *(name for name, _ in combination))), partial(check, *arguments, **options)


def cases():
    """Every check with its name."""
    every = masks()

    def some(*names):
        return {name: every[name] for name in names}

    dtypes, widths, causal = (BF16, F32), (8, 24, 40, 80, 128, 192, 256), some("causal")
    with_options = some("full", "both sides", "prefix")
    bands = some("full", "causal", "top left", "window", "narrow", "both sides", "alibi")

    yield from each("attention", attention, every, dtypes)
    yield from each("the GPU is the default device", default_device, every)
    yield from each("attention, width 128", attention, every, [(BF16, 128, 128)])
    yield from each("attention", attention, causal, [F16])
    pairs = (8, 8), (40, 24), (64, 128), (80, 80), (128, 128), (192, 128), (256, 256)
    yield from each("widths", attention, causal, dtypes, pairs)
    options = {"softcap": 20.0}, {"sinks": True}, {"scale": -0.2}, {"scale": 0.0}
    yield from each("attention", attention, with_options, [(BF16, 64, 64)], options)
    flash = some("causal", "window", "narrow", "both sides")
    yield from each("PyTorch's flash kernel", attention, flash, (BF16, F16), run=fused_attention.run)
    yield "PyTorch's flash kernel on short bands, through attend", short_bands
    yield "a cache whose length has settled goes over to cuDNN", settled_cache
    yield "a function is asked once", pure_functions
    yield "keys nobody may look at hold NaN", unseen_nan
    yield "any strides", strides
    yield "attention under a mask is one operator of a compiled graph", compiled_masks
    yield "two runs give the same bits", same_bits
    yield "more than 2³¹ numbers", far_offsets
    pooled = some("full", "causal", "window", "prefix", "padding", "heads differ", "alibi")
    yield from each("pool", pool, pooled, [(1, 1), (75, 67), (7, 100), (300, 335)])
    bins = (1, 2, 1024), (8, 8, 1024), (64, 16, 1024), (512, 1024, 1024), (1000, 3, 1024)
    yield from each("pool", pool, some("causal", "window"), bins)
    yield from each("forward with cells", forward_with_cells, bands, [BF16])
    wide = (BF16, 128, 128), (F16, 128, 64), (BF16, 80, 40), (F32, 64, 64), (BF16, 256, 256)
    yield from each("forward with cells", forward_with_cells, causal, wide)
    yield from each("forward with cells, options", forward_with_cells, causal, [BF16], options=True)
    yield from each("forward with cells, tokens", long_cells, (16_384, 20_001, 33_000))
    yield "a capture keeps overviews from the forward pass", captured_overviews
    yield "a long text is certified if it is right, captured by blocks of keys", certified_by_blocks
    yield from each("pool", pool, causal, [(8, 8, 1024, F32)])
    yield "pool, rows of a long overview sum to 1", long_pool
    yield from each("pool over spans, gain", span_pool, every, ("none", "above 0", "signed"))
    yield from each("pool over spans", span_pool, causal, [("signed", F32)])
    yield "pool over spans, one long beside many short, the same bits twice", long_span_pool
    for title, check in (
        ("column sums", weighted_received),
        ("mass, topk and diagonal", row_reductions),
        ("statistics", statistics),
    ):
        yield from each(title, check, every, dtypes)
        yield from each(f"{title}, width", check, causal, dtypes, widths)
        yield from each(f"{title}, softcap and sinks", check, with_options, [BF16], options=True)
    lengths = (1, 63, 64, 65, 127, 128, 129, 257)
    yield from each("mass, topk and diagonal, tokens", row_reductions, causal, [BF16], [128], lengths)
    yield "column sums, long, the same bits twice", long_received
    yield "mass, topk and diagonal, long, the same bits twice", long_row_reductions
    regions = some("causal", "window", "prefix", "padding", "alibi")
    yield from each("pool of a region", region, regions, [(8, 8), (70, 11), (100, 128)])
    yield from each("large scores", large_scores, (1.0, 1e2, 1e4), (BF16, F16, F32))
    yield from each("gradients of large scores", large_gradients, (1.0, 1e3))
    yield from each("statistics, some rows", statistics, causal, [BF16], first=77)
    yield "statistics, keys nobody may look at hold NaN", statistics_beside_nan
    yield "statistics, long, the same bits twice", long_statistics
    cells = (1, 1), (2, 8), (32, 128), (512, 4), (64, 512)
    yield from each("summary", summary, ["causal"], cells, [BF16])
    yield from each("summary", summary, ("full", "window", "prefix", "alibi"), [(2, 8), (32, 128)], [BF16])
    yield from each(
        "summary", summary, ["causal"], [(32, 128, F32), *((32, 16, BF16, D) for D in (24, 128, 192))]
    )
    yield from checker_cases()
    yield from intervention_cases()
    yield from policy_cases()
    yield from head_cases()


def attention(mask, dtype, D=64, E=64, options=None, run=launch.run):
    """Output, lse and all gradients."""
    chosen = dict(options or {})
    inputs = draw(dtype, D, E)
    sinks = torch.randn(H, device=DEVICE) if chosen.pop("sinks", False) else None
    upstream = torch.randn(2, H, T, E, device=DEVICE).to(dtype)

    q, k, v, s = leaves(inputs, sinks)
    problem = prepare(q, k, v, mask=mask, sinks=s, **chosen)
    assert launch.unsupported_reason(problem) is None
    output, lse = run(problem)
    ours = gradients(output, (q, k, v, s), upstream)

    q, k, v, s = leaves([x.double() for x in inputs], None if sinks is None else sinks.double())
    steps = trace(q, k, v, mask, sinks=s, **chosen)
    truth = gradients(steps.output, (q, k, v, s), upstream.double())
    masked = steps.masked
    if s is not None:
        masked = torch.cat([masked, s.view(1, -1, 1, 1).expand(2, H, T, 1)], -1)
    true_lse = torch.logsumexp(masked, -1)

    # PyTorch's kernel, without the options it lacks: its error is the measure, not its result.
    q, k, v, _ = leaves(inputs, None)
    tensor = (mask.tile if not mask.biased else mask.bias)(slice(0, T), slice(0, S), (2, H, T, S))
    allowed = mask.tile(slice(0, T), slice(0, S), (2, H, T, S))
    tensor = tensor if not mask.biased else tensor.masked_fill(~allowed, -torch.inf).to(dtype)
    wide = [x.repeat_interleave(H // G, 1) for x in (k, v)]
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        theirs_output = F.scaled_dot_product_attention(q, *wide, attn_mask=tensor.to(DEVICE))
    theirs = [theirs_output, *gradients(theirs_output, (q, k, v), upstream)]
    q, k, v, _ = leaves([x.double() for x in inputs], None)
    plain_output = trace(q, k, v, mask).output
    plain = [plain_output, *gradients(plain_output, (q, k, v), upstream.double())]
    measure = [distance(a.nan_to_num(), t) for a, t in zip(theirs, plain, strict=True)]

    least = 2 * torch.finfo(dtype).eps
    names = ("output", "q", "k", "v")
    for name, a, t, m in zip(names, [output, *ours], [steps.output, *truth], measure, strict=False):
        gap = distance(a, t)
        assert gap <= NEAR * max(m, least), f"{name}: error {gap:.1e}, PyTorch's {m:.1e}"
    if sinks is not None:
        gap = distance(ours[3], truth[3])
        assert gap <= 10 * least, f"sinks: error {gap:.1e}"
    assert torch.equal(lse.isinf(), true_lse.isinf()), "lse: −inf elsewhere"
    gap = (lse - true_lse).masked_fill(true_lse.isinf(), 0.0).abs().max().item()
    assert gap < (1e-3 if dtype != F32 else 1e-5), f"lse: off by {gap:.1e}"


def settled_cache():
    """Outputs before and after the change are as near to float64 as PyTorch's own, and it has its kernel."""
    for D, H, G, keys in ((128, 32, 8, 4096), (64, 4, 4, 129), (64, 6, 2, 64)):
        q, k, v = (
            torch.randn(1, h, n, D, device="cuda", dtype=BF16) for h, n in ((H, 1), (G, keys), (G, keys))
        )
        expected = trace(q.double(), k.double(), v.double()).output
        plain = F.scaled_dot_product_attention(q, k, v, enable_gqa=H != G)
        chosen = SDPBackend(torch._fused_sdp_choice(q, k, v, enable_gqa=H != G))
        by_cudnn = chosen == SDPBackend.CUDNN_ATTENTION
        assert by_cudnn or keys < 4096, chosen
        with patch.object(fused_attention, "SETTLED", 8):
            for call in range(12):  # the first makes the plan
                output = regard.attend(q, k, v, mask=regard.causal)
                gap, own = distance(output, expected), distance(plain, expected)
                assert gap <= NEAR * own + 1e-6, f"call {call}, {keys} keys: {gap:.1e}, PyTorch {own:.1e}"
                plan, _ = find_plan((q, k, v, regard.causal, None, None, None, 0.0, "auto"))
                assert isinstance(plan.kernel, fused_attention.SettledLength)
                assert plan.kernel.settled == (call > 8), f"call {call}, {keys} keys"
            assert torch.equal(output, plain)
            other = k[:, :, 1:], v[:, :, 1:]
            regard.attend(q, *other, mask=regard.causal)
            plan, _ = find_plan((q, *other, regard.causal, None, None, None, 0.0, "auto"))
            assert isinstance(plan.kernel, fused_attention.SettledLength)
            assert not plan.kernel.settled


def pure_functions():
    """The mass and the output under a function follow what it reads, and it is asked only then."""
    q, k, v = (torch.randn(1, 4, 300, 64, device="cuda", dtype=BF16) for _ in range(3))
    m = regard.attention_map(q, k, mask=regard.causal)
    weights, asked = trace(q.double(), k.double(), v.double(), regard.causal).weights, []
    real = Rule.allowed

    def allowed(self, at):
        # What holds for whole blocks is asked of intervals, by arithmetic on a few numbers, in every call.
        if not isinstance(at.k, Interval):
            asked.append(1)
        return real(self, at)

    with patch.object(Rule, "allowed", allowed):
        for step, is_new in ((3, True), (3, False), (5, True), (5, False)):
            before = len(asked)
            rule = regard.causal & regard.rule(lambda b, h, q, k: (q + k) % step == step - 1)  # noqa: B023
            mass, output = m.mass(rule), regard.attend(q, k, v, mask=rule | regard.prefix(1))
            assert (len(asked) > before) == is_new
            dense = rule.to_dense(300).cuda()
            assert distance(mass, (weights * dense).sum(-1)) < 1e-2
            dense[:, 0] = True
            assert distance(output, trace(q.double(), k.double(), v.double(), dense).output) < 1e-2


def short_bands():
    """Every edge of a band by attend, beside NaN in the keys that nobody sees, twice the same bits."""
    for t, s in ((1, 1), (1, 90), (2, 90), (64, 64), (64, 90), (65, 193), (128, 129)):
        for mask in (
            regard.causal,
            regard.causal & regard.window(1),
            regard.causal & regard.window(16),
            regard.window(16, ahead=3),
            regard.window(200),
        ):
            q, k, v = (
                torch.randn(2, h, n, 64, device="cuda", dtype=BF16) for h, n in ((4, t), (2, s), (2, s))
            )
            expected = trace(q.double(), k.double(), v.double(), mask)
            seen = mask.to_dense(t, s).any(0).cuda()
            k[:, :, ~seen], v[:, :, ~seen] = torch.nan, torch.inf
            assert regard.which_backend(q, k, v, mask=mask).backend == "torch"
            first = regard.attend(q, k, v, mask=mask)
            output, lse = regard.attend(q, k, v, mask=mask, return_lse=True)
            assert torch.equal(first, output), f"{mask}, {t} on {s}: other bits"
            gap = distance(output, expected.output)
            assert gap < 1e-2, f"{mask}, {t} on {s}: error {gap:.1e}"
            gap = (lse - expected.masked.logsumexp(-1)).abs().max().item()
            assert gap < 1e-3, f"{mask}, {t} on {s}: lse off by {gap:.1e}"
    q, k, v = (torch.randn(1, 8, 64, 64, device="cuda", dtype=BF16) for _ in range(3))
    mask = regard.causal & regard.window(16)
    assert regard.which_backend(q, k, v, mask=mask).backend == "torch"
    assert regard.which_backend(q, k, v, mask=mask, dropout=0.5).backend == "torch"
    assert regard.which_backend(q.clone().requires_grad_(), k, v, mask=mask).backend == "triton"
    dropped = regard.attend(q, k, torch.ones_like(v), mask=mask, dropout=0.5)
    assert 0.9 < dropped.float().mean().item() < 1.1, "dropout does not rescale"
    long = [torch.randn(1, 32, 8192, 128, device="cuda", dtype=BF16) for _ in range(3)]
    assert regard.which_backend(*long, mask=regard.causal & regard.window(4096)).backend == "triton"


def unseen_nan():
    for mask in (
        regard.padding([0, 200]),
        regard.causal & regard.padding([130, 200]),
        regard.window(9, ahead=3),
    ):
        q, k, v = (x.requires_grad_() for x in draw(BF16, 64, 64))
        seen = mask.tile(slice(0, T), slice(0, S), (2, 4, T, S)).expand(2, 4, T, S).any(-2).any(1)  # (2, S)
        with torch.no_grad():
            k[~seen.cuda()[:, None].expand(2, 2, S)] = torch.nan
            v[~seen.cuda()[:, None].expand(2, 2, S)] = torch.inf
        output, _ = launch.run(prepare(q, k, v, mask=mask))
        found = [output, *torch.autograd.grad(output.sum(), (q, k, v))]
        assert all(x.isfinite().all() for x in found), f"{mask}: NaN got out"


def compiled_masks():
    compiled = torch.compile(regard.attend, fullgraph=True)
    for name in ("window", "documents", "prefix"):
        q, k, v = (x.requires_grad_() for x in draw(BF16, 64, 64))
        outputs = [function(q, k, v, mask=masks()[name]) for function in (compiled, regard.attend)]
        found, expected = ([x, *torch.autograd.grad(x.float().sum(), (q, k, v))] for x in outputs)
        for a, b in zip(found, expected, strict=True):
            assert distance(a, b.double()) < 0.02, f"{name}: off by {distance(a, b.double()):.1e}"


def strides():
    q = torch.randn(2, T, 4, 64, device="cuda", dtype=BF16).transpose(1, 2)
    k = torch.randn(1, 1, S, 128, device="cuda", dtype=BF16)[..., ::2].expand(2, 2, S, 64)
    v = torch.randn(2, 2, 64, S, device="cuda", dtype=BF16).mT
    for mask in (regard.causal, regard.causal | regard.prefix(9)):
        twice = []
        for inputs in ((q, k, v), [x.contiguous() for x in (q, k, v)]):
            ready = [x.detach().requires_grad_() for x in inputs]
            output, lse = launch.run(prepare(*ready, mask=mask))
            twice.append([output, lse, *torch.autograd.grad(output.sum(), ready)])
        for a, b in zip(*twice, strict=True):
            assert torch.allclose(a, b, atol=1e-2, rtol=1e-2), "strides matter"


def same_bits():
    runs = []
    for _ in range(2):
        torch.manual_seed(5)
        q, k, v = (x.requires_grad_() for x in draw(BF16, 64, 64))
        output, lse = launch.run(prepare(q, k, v, mask=regard.causal))
        overview = triton_pool.pool(
            launch.KernelMap(q.detach(), k.detach(), lse, regard.causal, 0.125, None), 20, 20
        )
        runs.append([output, lse, *torch.autograd.grad(output.sum(), (q, k, v)), *overview])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def far_offsets():
    H, long = 132, 131_072
    q, k, v = (torch.randn(1, H, long, 128, device="cuda", dtype=BF16) for _ in range(3))
    assert q.numel() > 2**31
    mask = regard.causal & regard.window(100)
    output, lse = launch.run(prepare(q, k, v, mask=mask))
    alone = launch.run(prepare(q[:, -1:], k[:, -1:], v[:, -1:], mask=mask))
    assert torch.equal(output[:, -1:], alone[0])
    assert torch.equal(lse[:, -1:], alone[1])
    near = trace(*(x[:, -1:, -400:].double() for x in (q, k, v)), mask).output[:, :, -200:]
    assert distance(output[:, -1:, -200:], near) < 1e-2


def pool(mask, rows, cols, length=None, dtype=BF16, D=64):
    m, steps = drawn_map(mask, dtype, D, length)
    s = m.matrix[3]
    lse = torch.logsumexp(steps.masked, -1).float()
    for gain in (None, torch.randn(2, H, s, device=DEVICE)):
        entries = steps.weights if gain is None else steps.weights * gain.double().unsqueeze(-2)
        found = triton_pool.pool(launch.KernelMap(m.q, m.k, lse, mask, D**-0.5, None), rows, cols, gain)
        true_mass = assert_cells(found, entries, rows, cols, 1e-5)
        if gain is None:
            assert (
                torch.equal(found[0] == 0, true_mass.float() == 0) or true_mass[true_mass > 0].min() < 1e-30
            )


def assert_cells(found, entries, rows, cols, limit):
    """Compare mass and peak of cells with those of a dense matrix; return the true mass."""
    mass, peak = true_cells(entries, rows, cols)
    assert distance(found[0], mass) < limit, f"mass: error {distance(found[0], mass):.1e}"
    most = peak.abs()
    assert distance(found[1].abs(), most) < limit, f"max: error {distance(found[1].abs(), most):.1e}"
    # Rounding decides between one magnitude with two signs.
    below, above = (true_cells(x.clamp(min=0), rows, cols)[1] for x in (-entries, entries))
    clear = (below - above).abs() > 1e-3 * most
    assert torch.equal((found[1] < 0)[clear], (peak < 0)[clear]), "max: sign"
    return mass


def long_pool():
    q, k = (torch.randn(1, 2, 16_384, 128, device="cuda", dtype=BF16) for _ in range(2))
    lse = launch.run(prepare(q, k, k, mask=regard.causal))[1]
    for bins in (1024, 32):  # narrower and wider than a block
        mass, peak = triton_pool.pool(launch.KernelMap(q, k, lse, regard.causal, 128**-0.5, None), bins, bins)
        assert (mass.sum(-1) - 1).abs().max() < 1e-5
        assert ((peak <= 1 + 1e-5) & (peak >= 0)).all()
        assert (mass.triu(1) == 0).all()


def forward_with_cells(mask, dtype, D=64, E=64, options=False, size=128):
    """Output, lse and cells of one pass, against the dense matrix in float64 and the kernel without cells."""
    q, k, v = draw(dtype, D, E)
    softcap, sinks = (2.0, torch.randn(H, device=DEVICE)) if options else (None, None)
    problem = prepare(q, k, v, mask=mask, softcap=softcap, sinks=sinks)
    output, lse, found = launch.run_with_cells(problem, size)
    for a, b in zip((output, lse), launch.run(problem), strict=True):
        assert torch.equal(a, b), "other bits than without cells"
    true_sinks = None if sinks is None else sinks.double()
    weights = trace(q.double(), k.double(), k.double(), mask, softcap=softcap, sinks=true_sinks).weights
    bins = ([(i, min(i + size, n)) for i in range(0, n, size)] for n in (T, S))
    assert_cells((found.mass, found.max), weights, *bins, 1e-5)


def long_cells(length):
    """Against the kernel that pools a finished map, at lengths that fill their blocks and that do not."""
    q, k, v = (torch.randn(1, h, length, 128, device="cuda", dtype=BF16) for h in (6, 2, 2))
    problem, size = prepare(q, k, v, mask=regard.causal), cell_size(length, length)
    output, lse, found = launch.run_with_cells(problem, size)
    again = launch.run_with_cells(problem, size)
    for a, b in zip((output, lse, *found[1:]), (*again[:2], *again[2][1:]), strict=True):
        assert torch.equal(a, b), "other bits"
    edges = [*range(0, length, size), length]
    expected = regard.attention_map(q, k, mask=regard.causal, lse=lse).pool(edges, edges, "both")
    assert (found.mass - expected.mass).abs().max() < 1e-5
    assert (found.max - expected.max).abs().max() < 1e-5
    assert (found.mass.sum(-1) - 1).abs().max() < 1e-5


class SelfAttention(torch.nn.Module):
    def forward(self, x):
        q, k, v = (y.unflatten(-1, (-1, 64)).transpose(1, 2) for y in x.split([256, 128, 128], -1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def certified_by_blocks():
    """Evidence of long rows in blocks of keys, against that of the same rows as one matrix."""
    q, k, v = (torch.randn(1, h, 5000, 128, device="cuda", dtype=BF16) for h in (32, 8, 8))
    v[:, :, 2500:] *= 8.0
    for mask in (regard.causal, regard.causal & regard.window(1000), regard.padding([4000])):
        output, lse = regard.attend(q, k, v, mask=mask, return_lse=True)
        m = regard.attention_map(q, k, mask=mask, lse=lse)
        by_blocks = certify.examine(m, v, output)
        limit, row_products.KEYS_OF_SUM = row_products.KEYS_OF_SUM, 1 << 62
        try:
            whole = certify.examine(m, v, output)
        finally:
            row_products.KEYS_OF_SUM = limit
        assert by_blocks.certified, f"{mask}: {by_blocks}"
        assert whole.certified, f"{mask}: {whole}"
        assert abs(by_blocks.difference / by_blocks.tolerance - whole.difference / whole.tolerance) < 0.01
        assert abs(by_blocks.row_sums - whole.row_sums) < 1e-5
        wrong = {
            "scale": m._with(scale=m.scale * 1.05),
            "keys": m._with(k=k.roll(1, 2)),
            "lse": m._with(lse=lse + 0.1),
            "mask": m._with(mask=mask & regard.window(900)),
        }
        for name, other in wrong.items():
            assert not certify.examine(other, v, output).certified, f"{mask}: a wrong {name} is certified"
    # What the quick comparison leaves in doubt is compared again: large scores, equal values, infinity.
    output, lse = regard.attend(9 * q, 9 * k, v, mask=regard.causal, return_lse=True)
    assert certify.examine(
        regard.attention_map(9 * q, 9 * k, mask=regard.causal, lse=lse), v, output
    ).certified
    m, same = regard.attention_map(q, k, mask=regard.causal), torch.ones_like(v)
    evidence = certify.examine(m, same, regard.attend(q, k, same, mask=regard.causal))
    assert evidence.problem == certify.SIMILAR_VALUES
    v[:, :, -1] = torch.inf  # which only the last row sees
    output = regard.attend(q, k, v, mask=regard.causal)
    assert not certify.examine(m, v, output).certified


def captured_overviews():
    model, x = SelfAttention(), torch.randn(1, 4173, 512, device="cuda", dtype=BF16)
    with torch.no_grad():
        plain = model(x)
        with regard.capture(model, overviews=True) as seen:
            output = model(x)
    (m,) = seen
    assert seen.certificate.certified
    assert "Regard's kernel" in str(seen.certificate[0])
    assert distance(output, plain.double()) < 1e-2
    expected = m._with(precise=m.precise).pool([*range(0, 4173, 128), 4173], 1, "both")
    for a, b in zip(m.pool([*range(0, 4173, 128), 4173], 1, "both"), expected, strict=True):
        assert (a - b).abs().max() < 1e-5
    assert m.kept is not None


ROWS = Spans([0, 1, 2, 7, 220, 228], [1, 2, 5, 207, 226, 300])
COLS = Spans.from_edges([*range(0, 60), 64, 80, 81, 300, 302, S])


def span_pool(mask, gain, dtype=BF16, D=64, rows=ROWS, cols=COLS):
    """Through a map, for spans of 1 to 200 with gaps and without, against the dense matrix in float64."""
    plain, steps = drawn_map(mask, dtype, D)
    m, entries = plain, steps.weights
    if gain != "none":
        draw = torch.randn if gain == "signed" else torch.rand
        u = draw(2, H, S, device=DEVICE)
        m, entries = plain.weighted(u), entries * u.double().unsqueeze(-2)
    found = m.pool(rows, cols, "both")
    assert_cells((found.mass, found.max), entries, rows, cols, 2e-5)


def long_span_pool():
    q, k = (torch.randn(1, 2, 16_384, 128, device="cuda", dtype=BF16) for _ in range(2))
    m = regard.attention_map(q, k, mask=regard.causal)
    spans = Spans.from_edges([*range(0, 300), 11_000, *range(11_001, 11_300), 16_384])
    once, twice = m.pool(spans, spans, "both"), m.pool(spans, spans, "both")
    assert torch.equal(once.mass, twice.mass)
    assert torch.equal(once.max, twice.max)
    assert (once.mass.sum(-1) - 1).abs().max() < 1e-5


def weighted_received(mask, dtype, D=64, options=False):
    """wᵀA through a map: all rows, some rows far apart, and one row."""
    m, (*_, weights, _) = drawn_map(mask, dtype, D, options=options)
    for rows in (slice(None), slice(3, T, 17), slice(T // 3 + 1, T // 3 + 2)):
        w = torch.zeros(2, H, T, device=DEVICE)
        w[:, :, rows] = 1e3 * torch.randn_like(w[:, :, rows])
        found, truth = m.received(w), (w.double().unsqueeze(-2) @ weights).squeeze(-2)
        unit = (w.abs().double().unsqueeze(-2) @ weights).max().item()  # rounding, where signs cancel
        gap = (found - truth).abs().max().item() / max(unit, 1e-30)
        assert gap < 2e-5, f"{rows}: error {gap:.1e}"
    u = torch.randn(2, H, S, device=DEVICE)
    sums, truth = m.weighted(u).row_sums(), (weights @ u.double().unsqueeze(-1)).squeeze(-1)
    assert (sums - truth).abs().max() < 2e-5 * u.abs().max()


def long_received():
    q, k = (torch.randn(1, 2, 16_384, 128, device="cuda", dtype=BF16) for _ in range(2))
    m, w = regard.attention_map(q, k, mask=regard.causal), torch.randn(16_384, device="cuda")
    once = m.received(w)
    assert torch.equal(once, m.received(w))
    assert distance(m.received(torch.ones_like(w)), m.received().double()) < 1e-5
    some = torch.arange(0, 16_384, 321, device="cuda")
    sparse = torch.zeros_like(w).index_copy_(0, some, w[some])
    assert distance(m.received(sparse), w[some].double() @ m.tile(some).double()) < 1e-5


def row_reductions(mask, dtype, D=64, length=None, options=False, counts=(1, 8, 33)):
    """Through a map, against the dense matrix in float64."""
    m, (*_, weights, _) = drawn_map(mask, dtype, D, length, options)
    t, s = m.matrix[2:]
    for rule in (
        regard.window(9),
        regard.prefix(70),
        regard.rule(lambda b, h, q, k: (q + 2 * k) % 3 == h % 3),
    ):
        under = weights * rule.tile(slice(0, t), slice(0, s), (2, H, t, s)).to(DEVICE)
        gap = (m.mass(rule) - under.sum(-1)).abs().max().item()
        assert gap < 2e-5, f"mass of {rule}: error {gap:.1e}"
    for count in counts:
        count = min(count, s)
        found, keys = m.topk(count)
        gap = (found - weights.topk(count).values).abs().max().item()
        assert gap < 2e-5, f"topk({count}): error {gap:.1e}"
        assert torch.equal(keys == -1, found == 0), "topk: keys of weights of 0"
        at_keys = weights.gather(-1, keys.clamp(min=0)).masked_fill(keys < 0, 0.0)
        gap = (found - at_keys).abs().max().item()
        assert gap < 2e-5, f"topk({count}): weights of other keys, {gap:.1e}"
        named = keys.sort(-1).values
        assert not ((named[..., 1:] == named[..., :-1]) & (named[..., 1:] >= 0)).any(), "topk: a key twice"
    for offset in (-1, 0, s - t, 31):
        gap = (m.diagonal(offset) - weights.diagonal(offset, -2, -1)).abs()
        assert gap.numel() == 0 or gap.max() < 2e-5, f"diagonal({offset}): error {gap.max():.1e}"


def long_row_reductions():
    q, k = (torch.randn(1, 2, 16_384, 128, device="cuda", dtype=BF16) for _ in range(2))
    m = regard.attention_map(q, k, mask=regard.causal)
    some = torch.arange(0, 16_384, 321, device="cuda")
    tile = m.tile(some).double()
    once, twice = m.topk(8), m.topk(8)
    assert torch.equal(once.values, twice.values)
    assert torch.equal(once.indices, twice.indices)
    assert (once.values[:, :, some] - tile.topk(8).values).abs().max() < 1e-5
    mass = m.mass(regard.window(64))
    assert torch.equal(mass, m.mass(regard.window(64)))
    near = regard.window(64).tile(some, slice(0, 16_384), (16_384, 16_384), device=some.device)
    assert (mass[:, :, some] - (tile * near).sum(-1)).abs().max() < 1e-5
    assert (m.mass(regard.full) - 1).abs().max() < 1e-5
    own = tile[:, :, torch.arange(len(some)), some]
    assert (m.diagonal()[:, :, some] - own).abs().max() < 1e-5


def region(mask, rows, cols):
    m, steps = drawn_map(mask, BF16)
    for at in (
        (slice(0, 128), slice(0, 128)),
        (slice(150, 257), slice(31, 201)),
        (slice(200, T), slice(0, S)),
    ):
        mass, most = true_cells(steps.weights[:, :, at[0], at[1]], rows, cols)
        found = m.pool(rows, cols, "both", region=at)
        assert (found.mass - mass).abs().max() < 1e-5, f"mass: error {(found.mass - mass).abs().max():.1e}"
        assert (found.max - most).abs().max() < 1e-5, f"max: error {(found.max - most).abs().max():.1e}"


def statistics(mask, dtype, D=64, first=0, options=False):
    """By the kernel, through a map, against the dense matrix in float64."""
    m, steps = drawn_map(mask, dtype, D, options=options)
    m = m[:, :, first:]
    assert launch.unsupported_map_reason(m.q, m.k, m.mask.simplified(m.matrix)) is None
    weights, most = steps.weights[:, :, first:], steps.masked[:, :, first:].amax(-1)
    truths = *true_statistics(weights, S - T + first), most
    for name, found, truth in zip(m.statistics()._fields, m.statistics(), truths, strict=True):
        # The largest score of a row without visible keys is −inf.
        assert torch.equal(found == -torch.inf, truth == -torch.inf), name
        found, truth = (x.masked_fill(truth == -torch.inf, 0.0) for x in (found, truth))
        # lse comes from the forward kernel: its own error in float32 is a share of every weight.
        assert distance(found, truth) < 2e-5, f"{name}: error {distance(found, truth):.1e}"
        alone = getattr(m, name)()
        alone = alone.masked_fill(alone == -torch.inf, 0.0)
        assert distance(alone, truth) < 2e-5, f"{name} alone: error {distance(alone, truth):.1e}"


def statistics_beside_nan():
    q, k, _ = draw(BF16, 64, 64)
    k[0], k[1, :, 200:] = torch.nan, torch.nan
    for found in regard.attention_map(q, k, mask=regard.padding([0, 200])).statistics():
        assert not found.isnan().any()


def long_statistics():
    q, k = (torch.randn(1, 2, 16_384, 128, device="cuda", dtype=BF16) for _ in range(2))
    m = regard.attention_map(q, k, mask=regard.causal)
    once, twice = m.statistics(), m.statistics()
    for a, b in zip(once, twice, strict=True):
        assert torch.equal(a, b)
    assert (once.received.sum(-1) / 16_384 - 1).abs().max() < 1e-5
    some = torch.arange(0, 16_384, 321, device="cuda")
    tile = m.tile(some).double()
    back = some[:, None] - torch.arange(16_384, device="cuda")
    assert distance(once.entropy[:, :, some], torch.special.entr(tile).sum(-1)) < 1e-5
    assert distance(once.distance[:, :, some], (tile * back).sum(-1)) < 1e-5


def summary(name, rows, cols, dtype, D=64):
    """Cells and statistics of one pass, against the dense matrix in float64, and twice the same bits."""
    m, (*_, weights, _) = drawn_map(masks()[name], dtype, D, 512)
    with patch.object(triton_pool, "pool", side_effect=AssertionError("two passes")):
        found, again = m.summary(rows, cols), m.summary(rows, cols)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True)), "other bits"
    cells = weights.unflatten(-2, (rows, -1)).unflatten(-1, (cols, -1))
    assert distance(found.mass, cells.sum(-1).mean(-2)) < 2e-5, "mass"
    assert distance(found.max, cells.amax((-1, -3))) < 2e-5, "max"
    for name, one in m.statistics()._asdict().items():
        assert distance(getattr(found, name), one.double()) < 1e-5, name


def draw(dtype, D, E, length=None):
    t, s = (T, S) if length is None else (length, length)
    shapes = (2, H, t, D), (2, G, s, D), (2, G, s, E)
    return [torch.randn(shape, device=DEVICE).to(dtype) for shape in shapes]


def drawn_map(mask, dtype, D=64, length=None, options=False):
    """A map whose numbers come from kernels, and the steps of the same attention in float64."""
    q, k, _ = draw(dtype, D, 1, length)
    softcap, sinks = (2.0, torch.randn(H, device=DEVICE)) if options else (None, None)
    true_sinks = None if sinks is None else sinks.double()
    steps = trace(q.double(), k.double(), k.double(), mask, softcap=softcap, sinks=true_sinks)
    m = regard.attention_map(q, k, mask=mask, softcap=softcap, sinks=sinks)
    assert launch.unsupported_map_reason(m.q, m.k, m.mask.simplified(m.matrix)) is None
    return m, steps


def leaves(inputs, sinks):
    return [None if x is None else x.detach().clone().requires_grad_() for x in (*inputs, sinks)]


def gradients(output, inputs, upstream):
    wanted = [x for x in inputs if x is not None]
    return list(torch.autograd.grad(output, wanted, upstream))


def distance(x, truth):
    assert not x.isnan().any(), "NaN"
    return ((x.double() - truth).norm() / truth.norm().clamp(min=1e-30)).item()


def large_scores(size, dtype):
    """A map whose heads have very different scores, beside eager attention, whose softmax is in float32."""
    q, k, v = (torch.randn(1, 4, 300, 64, device="cuda") for _ in range(3))
    sizes = torch.tensor([1.0, size, size**0.5, 1.0], device="cuda").view(1, 4, 1, 1)
    q, k = (q * sizes).to(dtype), k.to(dtype)
    seen = torch.ones(300, 300, dtype=torch.bool, device="cuda").tril()
    right = (q.double() @ k.double().mT / 8).masked_fill(~seen, -torch.inf).softmax(-1)
    eager = ((q @ k.mT) / 8).float().masked_fill(~seen, -torch.inf).softmax(-1)
    m = regard.attention_map(q, k, mask=regard.causal)

    def numbers(A):
        cells = A.view(1, 4, 10, 30, 10, 30).sum(-1).mean(3)
        return [A, A[:, :, 7:90], cells, A.sum(-2), torch.special.entr(A).sum(-1), A @ v.to(A.dtype)]

    stats = m.statistics()
    ours = [m.to_dense(), m.tile(slice(7, 90)), m.pool(10, 10), stats.received, stats.entropy, m @ v]
    for a, b, c in zip(ours, numbers(eager), numbers(right), strict=True):
        unit = 16 * torch.finfo(torch.float32).eps * max(1.0, c.abs().max().item())
        error, theirs = ((x.double() - c).abs().max().item() for x in (a, b))
        theirs = 0.0 if math.isnan(theirs) else theirs  # scores over float16's largest number
        assert error <= NEAR * theirs + unit, f"off by {error:.1e}, eager by {theirs:.1e}"


def large_gradients(size):
    """Triton's backward pass beside that of eager attention, in float32."""
    inputs = [torch.randn(1, 2, 300, 64, device="cuda") for _ in range(3)]
    inputs[0] = inputs[0] * size
    upstream = torch.randn(1, 2, 300, 64, device="cuda")
    found = []
    for dtype in (F32, F32, torch.float64):
        q, k, v = (x.to(dtype).requires_grad_() for x in inputs)
        if found:
            output = trace(q, k, v, regard.causal).output
        else:
            output = launch.run(prepare(q, k, v, mask=regard.causal))[0]
        found.append(torch.autograd.grad(output, (q, k, v), upstream.to(dtype)))
    for a, b, c in zip(*found, strict=True):
        unit = 16 * torch.finfo(F32).eps * c.abs().max().item()
        error, theirs = ((x.double() - c).abs().max().item() for x in (a, b))
        theirs = 0.0 if math.isnan(theirs) else theirs  # scores over float16's largest number
        assert error <= NEAR * theirs + unit, f"off by {error:.1e}, eager by {theirs:.1e}"


def default_device(mask, default="cuda", places=("cpu", "cuda")):
    """With a default device, tensors give the bits that they give without it, where they are."""
    for place in places:
        draw = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(2, 4, n, 16, generator=draw, device="cpu").to(place) for n in (T, S, S))
        found = []
        for device in ("cpu", default):
            with torch.device(device):
                m = regard.attention_map(q, k, mask=mask)
                parts = [regard.attend(q, k, v, mask=mask), m @ v, m.pool(8, 8), m.pool([0, 7, T], 5, "max")]
                parts += [m.topk(3).values, m.diagonal(-1), m.mass(regard.window(9)), *m.statistics()]
                found.append([*parts, m[0, 1, 3], m.tile(slice(7, 90), range(0, S, 3))])
        for with_it, without in zip(*found, strict=True):
            assert with_it.device == without.device == q.device
            assert torch.equal(with_it, without)
