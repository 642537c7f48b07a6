"""Gradients that are wrong only under an option, in one size, or with dropout in training."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.checker.corpus import right, wrong
from tests.checker.layers import FusedHeads
from tests.sampling import share


class Backward(torch.autograd.Function):
    """Attention with its lse and a backward pass written by hand; `bug` plants a mistake in it."""

    @staticmethod
    def forward(ctx, q, k, v, bias=None, scale=None, rate=0.0, bug=""):
        H, G = q.shape[1], k.shape[1]
        keys, values = (x.repeat_interleave(H // G, 1) for x in (k, v))
        ctx.groups, ctx.bug, ctx.scale = G, bug, q.shape[-1] ** -0.5 if scale is None else scale
        scores = q @ keys.mT * ctx.scale
        scores = scores if bias is None else scores + bias
        lse = scores.logsumexp(-1)
        p = (scores - lse[..., None]).exp()
        kept = (torch.rand_like(p) >= rate).to(p.dtype) / (1 - rate)
        ctx.save_for_backward(q, keys, values, p, torch.ones_like(p) if bug == "dropout" else kept, bias)
        return (p * kept) @ values, lse

    @staticmethod
    def backward(ctx, grad, grad_lse):
        q, keys, values, p, kept, bias = ctx.saved_tensors
        B, H, T, D = q.shape
        S, G, bug, scale = keys.shape[2], ctx.groups, ctx.bug, ctx.scale
        if bug == "strides" and not grad.is_contiguous():  # takes numbers in the order of the memory
            grad = grad.transpose(1, 2).reshape(grad.shape)
        dv = (p * kept).mT @ grad
        dp = grad @ values.mT * kept
        if bug == "long" and T > 20:  # the last block of queries is left out
            dp[:, :, 20:] = 0
        ds = p * (dp - (dp * p).sum(-1, keepdim=True))
        if bug != "no lse":
            ds = ds + p * grad_lse[..., None] * (0.5 if bug == "half of lse" else 1)
        d_bias = None
        if bias is not None and bug != "no bias":
            d_bias = ds.sum_to_size(bias.shape) if bug != "mean of bias" else ds.mean((0, 1)).expand_as(bias)
        if bug == "scale":
            scale = D**-0.5
        dk = ds.mT @ q * scale
        if bug == "heads" and H > 4:
            dk = dk * 0.5
        if bug == "mask" and bool((p == 0).any()):
            ds = ds + (p == 0) * 0.1
        if bug == "groups":
            dk, dv = (x.view(B, G, H // G, S, -1)[:, :, 0] for x in (dk, dv))
        else:
            dk, dv = (x.view(B, G, H // G, S, -1).sum(2) for x in (dk, dv))
        return ds @ keys * scale, dk, dv, d_bias, None, None, None


def added(mask, dtype):
    """A mask of booleans as numbers that are added to the scores."""
    return torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, -torch.inf)


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
        bias = None if mask is None else added(mask, x.dtype)
        y, _ = Backward.apply(q, k, v, bias, None, self.dropout if self.training else 0.0, self.bug)
        return self.o_proj(y.transpose(1, 2).reshape(B, T, C))


def attention(q, k, v, causal=False, bug=""):
    T, S = q.shape[-2], k.shape[-2]
    bias = added(torch.ones(T, S, dtype=torch.bool).tril(S - T), q.dtype) if causal else None
    return Backward.apply(q, k, v, bias, None, 0.0, bug)[0]


def grouped_attention(q, k, v, causal=False):
    return attention(q, k, v, causal, bug="groups")


class Checkpointed(FusedHeads):
    """Recomputes its weights in the backward pass; `preserve` draws the same random numbers again."""

    preserve = True

    def __init__(self, d_model, num_heads, dropout=0.1):
        super().__init__(d_model, num_heads)
        self.drop = nn.Dropout(dropout)

    def attend(self, *heads):
        return checkpoint(self.run, *heads, use_reentrant=False, preserve_rng_state=self.preserve)

    def run(self, q, k, v):
        return self.drop((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)) @ v


class StopsGradientInTraining(Attention):
    def forward(self, x, mask=None):
        return super().forward(x.detach() + (x - x.detach()) * 0.5 if self.training else x, mask)


def attention_with(bug="", mask=False):
    def attention(q, k, v, attn_bias=None, scale=None):
        return Backward.apply(q, k, v, attn_bias, scale, 0.0, bug)

    def attend(q, k, v, attn_mask=None, scale=None):
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = added(attn_mask, q.dtype)
        return attention(q, k, v, attn_mask, scale)

    return attend if mask else attention


def planted(base, **changes):
    return type(base.__name__, (base,), changes)


IN_ONE_PLACE = {
    "dropout": "gradients in training",
    "groups": "grouped heads",
    "heads": "gradients, many heads",
    "long": "gradients, longer sequence",
    "mask": "gradients, mask",
}
OF_AN_OPTION = {
    "scale": "gradients, scale",
    "strides": "gradients, transposed output",
    "no bias": "gradient of attn_bias",
    "mean of bias": "gradient of attn_bias",
    "half of lse": "gradient of lse",
}


@pytest.mark.parametrize(
    "entry",
    [
        right(Attention, "gradients in training"),
        *share(
            [wrong(planted(Attention, bug=bug), says=[f"failed {x}"]) for bug, x in IN_ONE_PLACE.items()], 3
        ),
        right(attention),
        wrong(grouped_attention, says=["failed gradients, grouped heads"]),
        # Recomputed dropout must be the same.
        right(Checkpointed),
        wrong(planted(Checkpointed, preserve=False), says=["failed gradients in training"]),
        # Gradients that training scales on purpose are not called wrong.
        pytest.param(right(StopsGradientInTraining), marks=pytest.mark.at_length("test_the_report")),
        right(attention_with(), "is right: "),
        right(attention_with(mask=True), "is right, with 2 warnings: "),
        *(wrong(attention_with(bug), failed=(check,)) for bug, check in OF_AN_OPTION.items()),
        # A gradient that is left out by custom is named.
        right(attention_with("no lse"), "no gradient of lse"),
        right(attention_with("no bias", mask=True), "no gradient of attn_mask"),
    ],
    ids=str,
)
def test_the_report(entry):
    entry.judge()
