"""Whole models in training mode and with padding: what is causal in eval mode must be causal there too."""

import pytest
import torch
from torch import nn

import regard
from tests.checker.corpus import right, wrong
from tests.checker.language_models import Attention, Block, LanguageModel
from tests.sampling import share


class BatchNormBlock(Block):
    def __init__(self, n_embd, n_head):
        super().__init__(n_embd, n_head)
        self.bn = nn.BatchNorm1d(n_embd)

    def forward(self, x, mask=None):
        return super().forward(self.bn(x.transpose(1, 2)).transpose(1, 2), mask)


class BatchNormModel(LanguageModel):
    blocks = (Block, BatchNormBlock)


class MaskedInEvalBlock(Block):
    def forward(self, x, mask=None):
        return super().forward(x, None if self.training else mask)


class MaskedInEval(LanguageModel):
    blocks = (MaskedInEvalBlock, Block)


class DropoutBlock(Block):
    def __init__(self, n_embd, n_head):
        super().__init__(n_embd, n_head)
        self.drop = nn.Dropout(0.3)

    def forward(self, x, mask=None):
        noise = torch.randn_like(x) * 0.1 if self.training else 0.0
        return super().forward(self.drop(x) + noise, mask)


class DropoutModel(LanguageModel):
    blocks = (DropoutBlock, DropoutBlock)


def test_an_encoder_may_have_a_batch_norm():
    encoder = type("Encoder", (BatchNormModel,), {"mask": lambda self, T: torch.ones(T, T)})
    assert regard.check(encoder, causal=False).verdict != "wrong"


def test_the_weights_and_statistics_of_an_instance_are_left_as_they_are():
    model = BatchNormModel(64, 48, 4, 16)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    regard.check(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(part.training for part in model.modules())


class Padded(LanguageModel):
    """A language model that hides padding: 1 in its mask is a token."""

    def join(self, causal, visible, dtype):
        return causal * visible[:, None, None, :]

    def forward(self, idx, attention_mask=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        mask = self.mask(idx.shape[1])
        if attention_mask is not None:
            mask = self.join(mask, attention_mask, x.dtype)
        for block in self.h:
            x = block(x, mask)
        return self.lm_head(x)


class KeepsOnesFlash(Padded):
    """True in its `key_padding_mask` is a token, as in flash-attn."""

    def forward(self, idx, key_padding_mask=None):
        return super().forward(idx, key_padding_mask)


class HidesTrue(Padded):
    """True in its `key_padding_mask` is padding, as in PyTorch."""

    def forward(self, idx, key_padding_mask=None):
        return super().forward(idx, None if key_padding_mask is None else ~key_padding_mask)


class FirstMaskForAll(Padded):
    def join(self, causal, visible, dtype):
        return causal * visible[:1, None, None, :]


class MaskReplaced(Padded):
    def join(self, causal, visible, dtype):
        return visible[:, None, None, :]


class MaskReplacedHidesTrue(HidesTrue):
    join = MaskReplaced.join


class AddedAttention(Attention):
    def masked(self, scores, mask):
        return scores + mask


class AddedBlock(Block):
    attention = AddedAttention


class Added(Padded):
    """Its mask is added to the scores, and is NaN in float64: 0 times a number that is -inf in float32."""

    blocks = (AddedBlock, AddedBlock)

    def mask(self, T):
        return torch.full((T, T), float("-inf")).triu(1)

    def join(self, causal, visible, dtype):
        return causal + (1.0 - visible[:, None, None, :].float()) * torch.finfo(dtype).min


class AddedNaN(Added):
    def join(self, causal, visible, dtype):
        return causal + visible[:, None, None, :].float() * float("inf") - float("inf")


PADDED = (HidesTrue, Padded, Added, KeepsOnesFlash)
MIXED, IN_TRAINING = ("causality with padding",), ("causality in training",)


@pytest.mark.parametrize(
    "entry",
    [
        wrong(
            BatchNormModel,
            why="BatchNorm1d",
            failed=IN_TRAINING,
            named=("batch-items-mixed",),
            says=["LayerNorm"],
        ),
        wrong(MaskedInEval, failed=IN_TRAINING, named=()),
        right(DropoutModel, "passed causality in training"),
        *share([right(model, "passed padding", causal=True) for model in PADDED], 4),
        wrong(FirstMaskForAll, why="token 7, hidden by `attention_mask`", failed=("padding",)),
        wrong(MaskReplaced, why="though not without", failed=MIXED),
        wrong(MaskReplacedHidesTrue, why="with `key_padding_mask`", failed=MIXED),
        wrong(AddedNaN, why="its output is NaN", failed=("padding",)),
    ],
    ids=str,
)
def test_the_report(entry):
    entry.judge()
