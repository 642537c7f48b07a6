"""`oracle=`: code is compared with the author's own slow version, where the checker's has no place."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard.checker import CheckError, check, sandbox
from tests.checker.corpus import Entry


class SlowMLA(nn.Module):
    """Latent attention, written out: keys and values are expanded from a low rank."""

    scaled, causal = True, True

    def __init__(self, d_model=48, num_heads=4, rank=16):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, d_model // num_heads
        self.q = nn.Linear(d_model, d_model, bias=False)
        self.down = nn.Linear(d_model, rank, bias=False)
        self.up_k = nn.Linear(rank, d_model, bias=False)
        self.up_v = nn.Linear(rank, d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def weights(self, scores):
        T = scores.shape[-1]
        scores = scores / self.head_dim**0.5 if self.scaled else scores
        allowed = torch.ones(T, T, dtype=torch.bool, device=scores.device).tril()
        return torch.softmax(scores.masked_fill(~allowed, -torch.inf) if self.causal else scores, -1)

    def heads(self, x):
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def forward(self, x):
        c = self.down(x)
        q, k, v = self.heads(self.q(x)), self.heads(self.up_k(c)), self.heads(self.up_v(c))
        return self.out((self.weights(q @ k.mT) @ v).transpose(1, 2).flatten(2))


class FastMLA(SlowMLA):
    """The same with the expansion absorbed: attention happens in the low rank."""

    def forward(self, x):
        c = self.down(x)
        w_k, w_v = (w.weight.unflatten(0, (self.num_heads, self.head_dim)) for w in (self.up_k, self.up_v))
        q = torch.einsum("bhtd,hdr->bhtr", self.heads(self.q(x)), w_k)
        mixed = self.weights(torch.einsum("bhtr,bsr->bhts", q, c)) @ c[:, None]
        return self.out(torch.einsum("bhtr,hdr->bthd", mixed, w_v).flatten(2))


def gated(q, k, v, causal=False):
    T = q.shape[-2]
    allowed = torch.ones(T, T, dtype=torch.bool).tril() if causal else torch.ones(T, T, dtype=torch.bool)
    weights = torch.softmax((q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~allowed, -torch.inf), -1)
    return torch.sigmoid(q) * (weights @ v)


def differential(q, k, v, lam=0.8):
    (q1, q2), (k1, k2) = q.chunk(2, -1), k.chunk(2, -1)
    first, second = (torch.softmax(a @ b.mT / a.shape[-1] ** 0.5, -1) for a, b in ((q1, k1), (q2, k2)))
    return (first - lam * second) @ v


def differential_fused(q, k, v, lam=0.8, scale=None, dim=-1):
    (q1, q2), (k1, k2) = q.chunk(2, -1), k.chunk(2, -1)
    first, second = (F.scaled_dot_product_attention(*x, v, scale=scale) for x in ((q1, k1), (q2, k2)))
    return first - lam * second


def linear(q, k, v, causal=False):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    weights = q @ k.mT
    weights = weights.tril() if causal else weights
    return weights @ v / weights.sum(-1, keepdim=True)


def linear_by_sums(q, k, v, causal=False):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    if not causal:
        return q @ (k.mT @ v) / (q @ k.sum(-2).unsqueeze(-1))
    sums = torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(2)
    return torch.einsum("bhtd,bhtde->bhte", q, sums) / (q * k.cumsum(2)).sum(-1, keepdim=True)


def grouped(q, k, v, mask=None):
    times = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class Cached(nn.Module):
    """Gated attention with a cache."""

    def __init__(self, d_model=48):
        super().__init__()
        self.query, self.key = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.value, self.gate = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, x, cache=None):
        q, k, v = self.query(x), self.key(x), self.value(x)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 1), torch.cat([cache[1], v], 1)
        T, S = q.shape[1], k.shape[1]
        return self.gate(x).sigmoid() * (self.weights(q, k, T, S) @ v), (k, v)

    def weights(self, q, k, T, S):
        allowed = torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)
        return torch.softmax((q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~allowed, -torch.inf), -1)


class Uncached(Cached):
    """The reference: the same without a cache."""

    def forward(self, x):
        return super().forward(x)[0]


def packed(q, k, v, cu_seqlens, max_seqlen, causal=False):
    """Attention with a sigmoid, sequence by sequence."""
    outputs = []
    for start, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        weights = torch.sigmoid(q[start:end].transpose(0, 1) @ k[start:end].permute(1, 2, 0))
        weights = weights.tril() if causal else weights
        outputs.append((weights @ v[start:end].transpose(0, 1)).transpose(0, 1))
    return torch.cat(outputs)


def packed_at_once(q, k, v, cu_seqlens, max_seqlen, causal=False, across=False):
    item = torch.repeat_interleave(torch.arange(len(cu_seqlens) - 1), cu_seqlens.diff().long())
    weights = torch.sigmoid(q.transpose(0, 1) @ k.permute(1, 2, 0))
    weights = weights if across else weights * (item[:, None] == item)
    return ((weights.tril() if causal else weights) @ v.transpose(0, 1)).transpose(0, 1)


def test_the_reference_of_the_command_is_a_name_too(tmp_path, in_this_process):
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\n"
        "def slow(q, k, v):\n    return torch.softmax(q @ k.mT, -1) @ v\n"
        "def fast(q, k, v):\n    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v\n"
    )
    report = sandbox.check_in_process(f"{file}:fast", {"oracle": f"{file}:slow"})
    assert [diagnosis.name for diagnosis in report.diagnoses] == ["scaled-twice"]


class NoScale(FastMLA):
    scaled = False


class NoMask(FastMLA):
    causal = False


def gated_fused(q, k, v, is_causal=False):
    return torch.sigmoid(q) * F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


def ungated(q, k, v, is_causal=False):
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


def tiled(q, k, v, mask=None):
    times = q.shape[1] // k.shape[1]
    return grouped(q, k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1), mask)


def transposed(q, k, v, mask=None):  # (B, T, H, D)
    return grouped(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask).transpose(1, 2)


def unscaled(q, k, v, mask=None):
    scores = q @ k.mT
    return torch.softmax(scores if mask is None else scores + mask, -1) @ v


def inverted(q, k, v, mask=None):
    return unscaled(q, k, v, None if mask is None else torch.where(mask == 0, -torch.inf, 0.0).to(q))


def filled(q, k, v, mask=None):
    scores = q @ k.mT if mask is None else (q @ k.mT).masked_fill(~mask, -torch.inf)
    return torch.softmax(scores, -1) @ v


def filled_without_nan(q, k, v, mask=None):
    return filled(q, k, v, mask).nan_to_num()


class TopLeft(Cached):
    def weights(self, q, k, T, S):
        return super().weights(q, k, T, T) if T == S else torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1)


def across(q, k, v, cu_seqlens, max_seqlen, causal=False):
    return packed_at_once(q, k, v, cu_seqlens, max_seqlen, causal, across=True)


def relu(q, k, v):
    return torch.relu(q @ k.mT) @ v


def relu_in_blocks(q, k, v):
    if q.shape[-2] % 16 or q.shape[-1] % 16:
        raise ValueError("expected whole blocks of 16")
    return relu(q, k, v)


def windowed(q, k, v, window=None, return_lse=False):
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    allowed = (j <= i) & (j > i - (window or len(j)))
    scores = (q @ k.mT).masked_fill(~allowed, -torch.inf).clamp_max(3.0)
    output = torch.softmax(scores, -1) @ v
    return (output, torch.logsumexp(scores, -1)) if return_lse else output


def wide(q, k, v, window=None, return_lse=False):
    return windowed(q, k, v, None if window is None else window + 1, return_lse)


def base_2(q, k, v, window=None, return_lse=False):
    output, lse = windowed(q, k, v, window, return_lse=True)
    return (output, lse / torch.tensor(2.0).log()) if return_lse else output


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        return differential(q, k, v)

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("dq: expected contiguous rows")


def same(fast, slow, *says, **options):
    """Return the entry of code that does as its reference does."""
    return Entry(fast.__name__, fast, {"oracle": slow} | options, says=says)


def differs(fast, slow, *mistakes, **expected):
    """Return the entry of code that does otherwise: all the names of its mistakes."""
    return Entry(fast.__name__, fast, {"oracle": slow}, "wrong", named=mistakes, **expected)


FAST = ("output", "causality", "gradients", "batch", "state_dict", ".to()", "float32 error")
FAST += ("bfloat16 error", "float16 error", "extreme inputs")


@pytest.mark.parametrize(
    "entry",
    [
        same(
            FastMLA, SlowMLA, "assumed compared with SlowMLA, your reference", *(f"passed {x}" for x in FAST)
        ),
        differs(NoScale, SlowMLA, "no-scale", says=("√12 times", "example: ", "expected", "(1, 2, 48)")),
        differs(NoMask, SlowMLA, "no-mask", failed=("output", "causality")),
        same(gated_fused, gated),
        differs(ungated, gated, says=("example: ",)),
        same(differential_fused, differential),
        differs(
            lambda q, k, v: Fails.apply(q, k, v),
            differential,
            why="its backward pass raises ValueError: dq",
            failed=("gradients",),
        ),
        differs(lambda q, k, v, lam=0.8: differential_fused(q, k, v), differential, failed=("lam=0.65",)),
        same(linear_by_sums, linear),
        same(lambda q, k, v: linear_by_sums(q, k, v, True), linear, causal=True),
        differs(
            lambda q, k, v, causal=False: linear_by_sums(q, k, v),
            linear,
            "no-mask",
            says=("failed causal:", "failed causality"),
        ),
        differs(tiled, grouped, "grouped-heads-tiled", failed=("grouped heads",)),
        same(transposed, grouped, "assumed inputs (B, T, H, D)"),
        # Masks are compared in the form that the reference takes.
        same(unscaled, unscaled, "assumed mask: float, added to the scores, (T, S)"),
        Entry("inverted", inverted, {"oracle": unscaled}, "wrong", says=("named inverted-mask",)),
        differs(filled, filled_without_nan, "empty-row-nan", failed=("empty rows",)),
        same(filled_without_nan, filled),
        pytest.param(
            same(Cached, Uncached, "passed cache"),
            marks=pytest.mark.at_length("test_a_correct_cache_gives_the_whole"),
        ),
        pytest.param(
            Entry("TopLeft", TopLeft, {"oracle": Uncached}, "wrong", failed=("cache",)),
            marks=pytest.mark.at_length("test_a_correct_cache_gives_the_whole"),
        ),
        same(packed_at_once, packed, "passed lengths that differ"),
        differs(across, packed, "batch-items-mixed"),
        same(relu_in_blocks, relu),
        differs(wide, windowed, "window-off-by-one"),
        differs(base_2, windowed, "lse-base-2"),
    ],
    ids=str,
)
def test_the_report(entry):
    entry.judge()


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (lambda q, k, v, lam=0.8: differential_fused(q, k, v, lam, scale=1.0), "constant-scale"),
        (
            lambda q, k, v, lam=0.8: differential(q.bfloat16(), k.bfloat16(), v.bfloat16(), lam).to(q),
            "precision-lost",
        ),
        (lambda q, k, v, lam=0.8: differential(q, k, v.flip(0), lam), "batch-items-mixed"),
        (lambda q, k, v, lam=0.8: differential(q.detach(), k.detach(), v, lam), "weights-detached"),
    ],
)
def test_mistakes_in_differential_attention_are_named_first(wrong, name):
    Entry(name, wrong, {"oracle": differential}, "wrong", (name,)).judge()


def random(q, k, v):
    return v + torch.rand(1)


def broken(q, k, v):
    raise RuntimeError("not today")


@pytest.mark.parametrize(
    ("oracle", "says"),
    [
        (random, "random gives another output each time"),
        (broken, r"your reference broken could not be run.*not today"),
        (lambda x: x, "give both the same inputs"),
        (3, "your reference cannot be used"),
    ],
)
def test_a_reference_that_cannot_serve_is_refused(oracle, says):
    with pytest.raises(CheckError, match=says):
        check(grouped, oracle=oracle)
