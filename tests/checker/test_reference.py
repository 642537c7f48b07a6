"""`oracle=`: code is compared with the author's own slow version, where the checker's has no place."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard.checker import CheckError, check, sandbox


def names(report):
    return [diagnosis.name for diagnosis in report.diagnoses]


def failed(report):
    return {check.name for check in report.failures}


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


def test_a_fast_version_equal_to_its_reference_is_right():
    report = check(FastMLA, oracle=SlowMLA)
    assert report.verdict == "right", str(report)
    assert "compared with SlowMLA, your reference" in report.assumptions
    passed = {check.name for check in report.passed}
    assert {"output", "causality", "gradients", "batch", "state_dict", ".to()"} <= passed
    assert {"float32 error", "bfloat16 error", "float16 error", "extreme inputs"} <= passed


def test_a_missing_scale_is_named_by_what_repairs_it():
    class NoScale(FastMLA):
        scaled = False

    report = check(NoScale, oracle=SlowMLA)
    assert report.verdict == "wrong"
    assert names(report) == ["no-scale"]
    assert "√12 times" in report.diagnoses[0].what
    assert "expected" in report.example
    assert "(1, 2, 48)" in report.example


def test_a_leak_of_the_future_is_named():
    class NoMask(FastMLA):
        causal = False

    report = check(NoMask, oracle=SlowMLA)
    assert failed(report) == {"output", "causality"}
    assert names(report) == ["no-mask"]


def gated(q, k, v, causal=False):
    T = q.shape[-2]
    allowed = torch.ones(T, T, dtype=torch.bool).tril() if causal else torch.ones(T, T, dtype=torch.bool)
    weights = torch.softmax((q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~allowed, -torch.inf), -1)
    return torch.sigmoid(q) * (weights @ v)


def test_gated_attention_and_its_gate_forgotten():
    def fused(q, k, v, is_causal=False):
        return torch.sigmoid(q) * F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    def ungated(q, k, v, is_causal=False):
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    assert check(fused, oracle=gated).verdict == "right"
    report = check(ungated, oracle=gated)
    assert report.verdict == "wrong"
    assert report.diagnoses == []
    assert report.example


def differential(q, k, v, lam=0.8):
    (q1, q2), (k1, k2) = q.chunk(2, -1), k.chunk(2, -1)
    first, second = (torch.softmax(a @ b.mT / a.shape[-1] ** 0.5, -1) for a, b in ((q1, k1), (q2, k2)))
    return (first - lam * second) @ v


def differential_fused(q, k, v, lam=0.8, scale=None, dim=-1):
    (q1, q2), (k1, k2) = q.chunk(2, -1), k.chunk(2, -1)
    first, second = (F.scaled_dot_product_attention(*x, v, scale=scale) for x in ((q1, k1), (q2, k2)))
    return first - lam * second


def test_differential_attention():
    assert check(differential_fused, oracle=differential).verdict == "right"


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
def test_mistakes_in_differential_attention_are_named(wrong, name):
    report = check(wrong, oracle=differential)
    assert report.verdict == "wrong", str(report)
    assert names(report)[0] == name, str(report)


def test_a_backward_pass_that_fails_is_a_finding():
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            return differential(q, k, v)

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError("dq: expected contiguous rows")

    report = check(lambda q, k, v: Fails.apply(q, k, v), oracle=differential)
    (failure,) = report.failures
    assert failure.name == "gradients"
    assert "its backward pass raises ValueError: dq" in failure.detail
    assert names(report) == []


def test_an_option_that_one_ignores_is_found():
    report = check(lambda q, k, v, lam=0.8: differential_fused(q, k, v), oracle=differential)
    assert failed(report) == {"lam=0.65"}


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


def test_linear_attention():
    assert check(linear_by_sums, oracle=linear).verdict == "right"
    report = check(lambda q, k, v, causal=False: linear_by_sums(q, k, v), oracle=linear)
    assert {"causal", "causality"} <= failed(report)
    assert names(report) == ["no-mask"]
    assert check(lambda q, k, v: linear_by_sums(q, k, v, True), oracle=linear, causal=True).verdict == "right"


def grouped(q, k, v, mask=None):
    times = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def test_a_kernel_with_the_wrong_order_of_groups():
    def tiled(q, k, v, mask=None):
        times = q.shape[1] // k.shape[1]
        return grouped(q, k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1), mask)

    def transposed(q, k, v, mask=None):  # (B, T, H, D)
        return grouped(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask).transpose(1, 2)

    report = check(tiled, oracle=grouped)
    assert failed(report) == {"grouped heads"}
    assert names(report) == ["grouped-heads-tiled"]
    report = check(transposed, oracle=grouped)
    assert report.verdict == "right", str(report)
    assert "inputs (B, T, H, D)" in report.assumptions


def test_masks_are_compared_in_the_form_that_the_reference_takes():
    def slow(q, k, v, mask=None):
        scores = q @ k.mT
        return torch.softmax(scores if mask is None else scores + mask, -1) @ v

    def inverted(q, k, v, mask=None):
        return slow(q, k, v, None if mask is None else torch.where(mask == 0, -torch.inf, 0.0).to(q))

    report = check(slow, oracle=slow)
    assert report.verdict == "right"
    assert "mask: float, added to the scores, (T, S)" in report.assumptions
    assert "inverted-mask" in names(check(inverted, oracle=slow))


def test_nan_in_rows_without_a_key_is_named():
    def slow(q, k, v, mask=None):
        scores = q @ k.mT if mask is None else (q @ k.mT).masked_fill(~mask, -torch.inf)
        return torch.softmax(scores, -1).nan_to_num() @ v

    def fast(q, k, v, mask=None):
        return torch.softmax(q @ k.mT if mask is None else (q @ k.mT).masked_fill(~mask, -torch.inf), -1) @ v

    report = check(fast, oracle=slow)
    assert failed(report) == {"empty rows"}
    assert names(report) == ["empty-row-nan"]
    assert check(slow, oracle=fast).verdict == "right"


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


@pytest.mark.at_length("test_a_correct_cache_gives_the_whole")
def test_pieces_of_a_cached_module_are_compared_with_the_whole():
    class TopLeft(Cached):
        def weights(self, q, k, T, S):
            return super().weights(q, k, T, T) if T == S else torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1)

    report = check(Cached, oracle=Uncached)
    assert report.verdict == "right", str(report)
    assert "cache" in {check.name for check in report.passed}
    report = check(TopLeft, oracle=Uncached)
    assert failed(report) == {"cache"}


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


def test_packed_sequences():
    report = check(packed_at_once, oracle=packed)
    assert report.verdict == "right", str(report)
    assert "lengths that differ" in {check.name for check in report.passed}

    def across(q, k, v, cu_seqlens, max_seqlen, causal=False):
        return packed_at_once(q, k, v, cu_seqlens, max_seqlen, causal, across=True)

    assert names(check(across, oracle=packed)) == ["batch-items-mixed"]


def test_a_kernel_that_takes_whole_blocks_only():
    def slow(q, k, v):
        return torch.relu(q @ k.mT) @ v

    def in_blocks(q, k, v):
        if q.shape[-2] % 16 or q.shape[-1] % 16:
            raise ValueError("expected whole blocks of 16")
        return slow(q, k, v)

    assert check(in_blocks, oracle=slow).verdict == "right"


def test_a_window_too_wide_and_another_logarithm_are_named():
    def slow(q, k, v, window=None, return_lse=False):
        i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
        allowed = (j <= i) & (j > i - (window or len(j)))
        scores = (q @ k.mT).masked_fill(~allowed, -torch.inf).clamp_max(3.0)
        output = torch.softmax(scores, -1) @ v
        return (output, torch.logsumexp(scores, -1)) if return_lse else output

    def wide(q, k, v, window=None, return_lse=False):
        return slow(q, k, v, None if window is None else window + 1, return_lse)

    def base_2(q, k, v, window=None, return_lse=False):
        output, lse = slow(q, k, v, window, return_lse=True)
        return (output, lse / torch.tensor(2.0).log()) if return_lse else output

    assert names(check(wide, oracle=slow)) == ["window-off-by-one"]
    assert names(check(base_2, oracle=slow)) == ["lse-base-2"]


def test_a_reference_that_cannot_serve_is_refused():
    def random(q, k, v):
        return v + torch.rand(1)

    def broken(q, k, v):
        raise RuntimeError("not today")

    def other(x):
        return x

    fast = grouped
    with pytest.raises(CheckError, match="random gives another output each time"):
        check(fast, oracle=random)
    with pytest.raises(CheckError, match=r"your reference broken could not be run.*not today"):
        check(fast, oracle=broken)
    with pytest.raises(CheckError, match="give both the same inputs"):
        check(fast, oracle=other)
    with pytest.raises(CheckError, match="your reference cannot be used"):
        check(fast, oracle=3)


def test_the_reference_of_the_command_is_a_name_too(tmp_path, in_this_process):
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\n"
        "def slow(q, k, v):\n    return torch.softmax(q @ k.mT, -1) @ v\n"
        "def fast(q, k, v):\n    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v\n"
    )
    report = sandbox.check_in_process(f"{file}:fast", {"oracle": f"{file}:slow"})
    assert [diagnosis.name for diagnosis in report.diagnoses] == ["scaled-twice"]
