"""Training mode: what is right in eval mode must be right there too, with every option and its gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from tests.sampling import combine


class Attention(nn.Module):
    """Attention with dropout written by hand; `bug` plants a mistake that only training shows."""

    bug = ""

    def __init__(self, d_model, num_heads, dropout=0.0, causal=False):
        super().__init__()
        self.num_heads, self.dropout, self.causal = num_heads, dropout, causal
        self.query, self.key, self.value, self.out = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, attn_mask=None, key_padding_mask=None):
        B, T, C = x.shape
        layers = (self.query, self.key, self.value)
        q, k, v = (layer(x).view(B, T, self.num_heads, -1).transpose(1, 2) for layer in layers)
        bug = self.bug if self.training else ""
        if bug == "no gradient of the values":
            v = v.detach()
        if bug == "half of the gradient of the keys":
            k = torch.cat([k[:, :2].detach(), k[:, 2:]], 1)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if self.causal and bug != "not causal":
            scores = scores.masked_fill(~torch.ones(T, T, dtype=torch.bool).tril(), -torch.inf)
        if attn_mask is not None and bug != "no mask":
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        if key_padding_mask is not None and not (bug == "no padding mask with dropout" and self.dropout):
            scores = scores.masked_fill(key_padding_mask[:, None, None], -torch.inf)
        weights = self.drop(scores.softmax(-1))
        return self.out((weights @ v).transpose(1, 2).reshape(B, T, C))

    def drop(self, weights):
        return F.dropout(weights, self.dropout, self.training)


class OwnRandomNumbers(Attention):
    def drop(self, weights):
        if not self.training or self.dropout == 0:
            return weights
        return weights * (torch.rand_like(weights) >= self.dropout) / (1 - self.dropout)


def planted(base, bug):
    return type("Attention", (base,), {"bug": bug})


@pytest.mark.parametrize(
    ("bug", "base"), combine(["no mask", "no padding mask with dropout"], [Attention, OwnRandomNumbers])
)
def test_a_mask_that_training_ignores_is_found(base, bug):
    report = regard.check(planted(base, bug))
    assert [failure.name for failure in report.failures] == ["training mode"], report


@pytest.mark.parametrize("base", [Attention, OwnRandomNumbers])
def test_right_code_is_right_in_training(base):
    for causal in (False, True):
        report = regard.check(base, init={"causal": causal, "dropout": 0.1})
        assert report.verdict == "right", report


def test_a_module_that_is_not_causal_in_training_is_found():
    report = regard.check(planted(Attention, "not causal"), init={"causal": True})
    assert "training mode" in [failure.name for failure in report.failures], report


@pytest.mark.parametrize("bug", ["no gradient of the values", "half of the gradient of the keys"])
def test_a_gradient_that_training_stops_is_found(bug):
    report = regard.check(planted(Attention, bug))
    assert [failure.name for failure in report.failures] == ["gradients in training"], report


class ZeroRowsOfPadding(Attention):
    """In training the rows of padded tokens are 0, as kernels for packed sequences leave them."""

    def forward(self, x, attn_mask=None, key_padding_mask=None):
        y = super().forward(x, attn_mask, key_padding_mask)
        return y if key_padding_mask is None or not self.training else y * ~key_padding_mask[..., None]


class DropsKeys(Attention):
    """DropKey hides keys before the softmax, by a number that hides more than a mask."""

    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__(d_model, num_heads, dropout)

    def forward(self, x, attn_mask=None):
        B, T, C = x.shape
        layers = (self.query, self.key, self.value)
        q, k, v = (layer(x).view(B, T, self.num_heads, -1).transpose(1, 2) for layer in layers)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, -1e9)
        if self.training:
            scores = scores + torch.bernoulli(torch.full_like(scores, self.dropout)) * -1e12
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C))


@pytest.mark.parametrize("cls", [ZeroRowsOfPadding, DropsKeys])
def test_what_training_may_do_is_not_called_wrong(cls):
    assert regard.check(cls).verdict != "wrong"
