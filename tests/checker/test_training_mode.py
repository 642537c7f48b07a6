"""Training mode: what is right in eval mode must be right there too, with every option and its gradients."""

import pytest
import torch
import torch.nn.functional as F

import regard
from tests.checker.corpus import right, wrong
from tests.checker.corpus.dropout_rates import DropKey
from tests.checker.layers import FourLayers
from tests.sampling import combine


class Attention(FourLayers):
    """Attention with dropout written by hand; `bug` plants a mistake that only training shows."""

    bug = ""

    def __init__(self, d_model, num_heads, dropout=0.0, causal=False):
        super().__init__(d_model, num_heads)
        self.dropout, self.causal = dropout, causal

    def forward(self, x, attn_mask=None, key_padding_mask=None):
        (q, k, v), T = self.project(x, x, x), x.shape[1]
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
        return self.finish(self.drop(scores.softmax(-1)) @ v)

    def drop(self, weights):
        return F.dropout(weights, self.dropout, self.training)


class OwnRandomNumbers(Attention):
    def drop(self, weights):
        if not self.training or self.dropout == 0:
            return weights
        return weights * (torch.rand_like(weights) >= self.dropout) / (1 - self.dropout)


def planted(base, bug):
    return type("Attention", (base,), {"bug": bug})


class ZeroRowsOfPadding(Attention):
    """In training the rows of padded tokens are 0, as kernels for packed sequences leave them."""

    def forward(self, x, attn_mask=None, key_padding_mask=None):
        y = super().forward(x, attn_mask, key_padding_mask)
        return y if key_padding_mask is None or not self.training else y * ~key_padding_mask[..., None]


MASKS = ("no mask", "no padding mask with dropout")
GRADIENTS = ("no gradient of the values", "half of the gradient of the keys")
NOT_CAUSAL = planted(Attention, "not causal")


@pytest.mark.parametrize(
    "entry",
    [
        *(
            wrong(planted(base, bug), failed=("training mode",))
            for bug, base in combine(MASKS, [Attention, OwnRandomNumbers])
        ),
        *(
            right(base, init={"causal": causal, "dropout": 0.1})
            for base in (Attention, OwnRandomNumbers)
            for causal in (False, True)
        ),
        wrong(NOT_CAUSAL, says=["failed training mode"], init={"causal": True}),
        *(wrong(planted(Attention, bug), failed=("gradients in training",)) for bug in GRADIENTS),
    ],
    ids=str,
)
def test_the_report(entry):
    entry.judge()


@pytest.mark.parametrize("cls", [ZeroRowsOfPadding, DropKey])
def test_what_training_may_do_is_not_called_wrong(cls):
    assert regard.check(cls).verdict != "wrong"
