"""Gradients that are wrong only under an option, in one size, or with dropout in training."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import regard
from tests.sampling import share


class Backward(torch.autograd.Function):
    """Attention with a backward pass written by hand; `bug` plants a mistake in it."""

    @staticmethod
    def forward(ctx, q, k, v, mask, rate, bug):
        H, G = q.shape[1], k.shape[1]
        keys, values = (x.repeat_interleave(H // G, 1) for x in (k, v))
        scores = q @ keys.mT * q.shape[-1] ** -0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        p = scores.softmax(-1)
        kept = (torch.rand_like(p) >= rate).to(p.dtype) / (1 - rate)
        ctx.save_for_backward(q, keys, values, p, torch.ones_like(p) if bug == "dropout" else kept)
        ctx.groups, ctx.bug = G, bug
        return (p * kept) @ values

    @staticmethod
    def backward(ctx, grad):
        q, keys, values, p, kept = ctx.saved_tensors
        B, H, T, D = q.shape
        S, G = keys.shape[2], ctx.groups
        dv = (p * kept).mT @ grad
        dp = grad @ values.mT * kept
        if ctx.bug == "long" and T > 20:  # the last block of queries is left out
            dp[:, :, 20:] = 0
        ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * D**-0.5
        dk = ds.mT @ q
        if ctx.bug == "heads" and H > 4:
            dk = dk * 0.5
        if ctx.bug == "mask" and bool((p == 0).any()):
            ds = ds + (p == 0) * 0.1
        if ctx.bug == "groups":
            dk, dv = (x.view(B, G, H // G, S, -1)[:, :, 0] for x in (dk, dv))
        else:
            dk, dv = (x.view(B, G, H // G, S, -1).sum(2) for x in (dk, dv))
        return ds @ keys, dk, dv, None, None, None


class Attention(nn.Module):
    bug = ""

    def __init__(self, d_model, num_heads, num_kv_heads=None, dropout=0.1):
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads or num_heads
        self.dropout, self.head_dim = dropout, d_model // num_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj, self.v_proj = (nn.Linear(d_model, self.num_kv_heads * self.head_dim) for _ in range(2))
        self.o_proj = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        B, T, C = x.shape
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (layer(x).view(B, T, -1, self.head_dim).transpose(1, 2) for layer in projections)
        y = Backward.apply(q, k, v, mask, self.dropout if self.training else 0.0, self.bug)
        return self.o_proj(y.transpose(1, 2).reshape(B, T, C))


@pytest.mark.parametrize(
    ("bug", "check"),
    share(
        [
            ("dropout", "gradients in training"),
            ("groups", "grouped heads"),
            ("heads", "gradients, many heads"),
            ("long", "gradients, longer sequence"),
            ("mask", "gradients, mask"),
        ],
        3,
    ),
)
def test_a_gradient_that_is_wrong_in_one_place_is_found(bug, check):
    report = regard.check(type("Attention", (Attention,), {"bug": bug}))
    assert check in [failure.name for failure in report.failures], report


def test_a_right_backward_pass_is_right():
    report = regard.check(Attention)
    assert report.verdict == "right", report
    assert any(check.name == "gradients in training" for check in report.checks)


def attention(q, k, v, causal=False, bug=""):
    T, S = q.shape[-2], k.shape[-2]
    mask = torch.ones(T, S, dtype=torch.bool).tril(S - T) if causal else None
    return Backward.apply(q, k, v, mask, 0.0, bug)


def grouped_attention(q, k, v, causal=False):
    return attention(q, k, v, causal, bug="groups")


def test_functions_are_asked_for_the_gradients_of_grouped_heads():
    assert regard.check(attention).verdict == "right"
    report = regard.check(grouped_attention)
    assert "gradients, grouped heads" in [failure.name for failure in report.failures], report


class Checkpointed(nn.Module):
    """Recomputes its weights in the backward pass; `preserve` draws the same random numbers again."""

    preserve = True

    def __init__(self, d_model, num_heads, dropout=0.1):
        super().__init__()
        self.num_heads, self.drop = num_heads, nn.Dropout(dropout)
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.num_heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = checkpoint(self.attend, q, k, v, use_reentrant=False, preserve_rng_state=self.preserve)
        return self.out(y.transpose(1, 2).reshape(B, T, C))

    def attend(self, q, k, v):
        return self.drop((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)) @ v


def test_recomputed_dropout_must_be_the_same():
    assert regard.check(Checkpointed).verdict == "right"
    report = regard.check(type("Checkpointed", (Checkpointed,), {"preserve": False}))
    assert "gradients in training" in [failure.name for failure in report.failures], report


class StopsGradientInTraining(Attention):
    def forward(self, x, mask=None):
        return super().forward(x.detach() + (x - x.detach()) * 0.5 if self.training else x, mask)


@pytest.mark.at_length("test_a_right_backward_pass_is_right")
def test_gradients_that_training_scales_on_purpose_are_not_called_wrong():
    assert regard.check(StopsGradientInTraining).verdict == "right"


class ManyOptions(torch.autograd.Function):
    """Attention with a scale, a bias and the lse, and its backward pass; `bug` plants a mistake in it."""

    @staticmethod
    def forward(ctx, q, k, v, scale, bias, bug):
        scores = q @ k.mT * scale
        scores = scores if bias is None else scores + bias
        lse = scores.logsumexp(-1)
        p = (scores - lse[..., None]).exp()
        ctx.save_for_backward(q, k, v, p, bias)
        ctx.scale, ctx.bug = scale, bug
        return p @ v, lse

    @staticmethod
    def backward(ctx, grad, grad_lse):
        q, k, v, p, bias = ctx.saved_tensors
        bug, scale = ctx.bug, ctx.scale
        if bug == "strides" and not grad.is_contiguous():  # takes numbers in the order of the memory
            grad = grad.transpose(1, 2).reshape(grad.shape)
        dp = grad @ v.mT
        ds = p * (dp - (dp * p).sum(-1, keepdim=True))
        if bug != "no lse":
            ds = ds + p * grad_lse[..., None] * (0.5 if bug == "half of lse" else 1)
        d_bias = None
        if bias is not None and bug != "no bias":
            d_bias = ds.sum_to_size(bias.shape) if bug != "mean of bias" else ds.mean((0, 1)).expand_as(bias)
        if bug == "scale":
            scale = q.shape[-1] ** -0.5
        return ds @ k * scale, ds.mT @ q * scale, p.mT @ grad, None, d_bias, None


def attention_with(bug="", mask=False):
    def attention(q, k, v, attn_bias=None, scale=None):
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        return ManyOptions.apply(q, k, v, scale, attn_bias, bug)

    def attend(q, k, v, attn_mask=None, scale=None):
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros(attn_mask.shape, dtype=q.dtype).masked_fill(~attn_mask, -torch.inf)
        return attention(q, k, v, attn_mask, scale)

    return attend if mask else attention


def test_gradients_of_a_scale_a_bias_and_the_lse_are_right():
    for mask in (False, True):
        report = regard.check(attention_with(mask=mask))
        assert report.verdict == "right", report
        assert "as far as tried" not in report.summary


@pytest.mark.parametrize(
    ("bug", "check"),
    [
        ("scale", "gradients, scale"),
        ("strides", "gradients, transposed output"),
        ("no bias", "gradient of attn_bias"),
        ("mean of bias", "gradient of attn_bias"),
        ("half of lse", "gradient of lse"),
    ],
)
def test_a_wrong_gradient_of_an_option_is_found(bug, check):
    report = regard.check(attention_with(bug))
    assert [failure.name for failure in report.failures] == [check], report


@pytest.mark.parametrize(("bug", "mask", "name"), [("no lse", False, "lse"), ("no bias", True, "attn_mask")])
def test_a_gradient_that_is_left_out_by_custom_is_named(bug, mask, name):
    report = regard.check(attention_with(bug, mask=mask))
    assert report.verdict == "right", report
    assert f"no gradient of {name}" in report.summary
