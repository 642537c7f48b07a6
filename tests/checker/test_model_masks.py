"""Whole models in training mode and with padding: what is causal in eval mode must be causal there too."""

import pytest
import torch
from torch import nn

import regard
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


def test_a_batch_norm_reads_later_tokens_in_training():
    report = regard.check(BatchNormModel)
    assert [failure.name for failure in report.failures] == ["causality in training"], report
    assert "BatchNorm1d" in report.failures[0].detail
    assert [diagnosis.name for diagnosis in report.diagnoses] == ["batch-items-mixed"]
    assert "LayerNorm" in report.diagnoses[0].fix


def test_a_mask_that_only_eval_has():
    report = regard.check(MaskedInEval)
    assert [failure.name for failure in report.failures] == ["causality in training"], report
    assert not report.diagnoses


def test_dropout_and_noise_in_training_are_right():
    report = regard.check(DropoutModel)
    assert report.verdict == "right", report
    assert "causality in training" in [check.name for check in report.checks]


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


@pytest.mark.parametrize("model", share([HidesTrue, Padded, Added, KeepsOnesFlash], 4))
def test_right_padding_masks_of_models(model):
    report = regard.check(model, causal=True)
    assert report.verdict == "right", str(report)
    assert "padding" in {check.name for check in report.passed}


@pytest.mark.parametrize(
    ("model", "failed", "words"),
    [
        (FirstMaskForAll, "padding", "token 7, hidden by `attention_mask`"),
        (MaskReplaced, "causality with padding", "though not without"),
        (MaskReplacedHidesTrue, "causality with padding", "with `key_padding_mask`"),
        (AddedNaN, "padding", "its output is NaN"),
    ],
)
def test_wrong_padding_masks_of_models(model, failed, words):
    report = regard.check(model)
    assert [failure.name for failure in report.failures] == [failed], str(report)
    assert words in report.failures[0].detail
