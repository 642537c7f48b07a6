"""Next-token predictions: those of a dense float64 softmax, whatever the chunks and the padding."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import regard
from regard.gpt import GPT, Config
from regard.recorder.tokens_of_maps import predictions as module
from regard.recorder.tokens_of_maps.predictions import predictions_from


def dense(logits):
    return logits.double().log_softmax(-1)


@given(st.data())
def test_they_are_those_of_a_dense_softmax(data):
    B, T, V = (data.draw(st.integers(1, most)) for most in (3, 9, 30))
    torch.manual_seed(data.draw(st.integers(0, 99)))
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
    logits = (4 * torch.randn(B, T, V)).to(dtype)
    ids = torch.randint(0, V, (B, T))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK", data.draw(st.integers(1, B * T * V)))
        found = predictions_from(logits, ids)
    logp = dense(logits)
    k = min(10, V)
    top = logp.topk(k, -1).values
    torch.testing.assert_close(logp.gather(-1, found.likeliest), top)  # equal logits may stand in any order
    torch.testing.assert_close(found.probabilities.double(), top.exp(), rtol=1e-5, atol=1e-7)
    following = logp[:, :-1].gather(-1, ids[:, 1:, None])  # (B, T - 1, 1)
    torch.testing.assert_close(found.losses.double(), -following[..., 0], rtol=1e-5, atol=1e-5)
    assert torch.equal(found.ranks, 1 + (logp[:, :-1] > following).sum(-1))
    if T > 1:
        torch.testing.assert_close(found.loss.double(), -following[..., 0].mean(-1), rtol=1e-5, atol=1e-5)


def test_what_is_padding_is_no_prediction():
    logits, ids = torch.randn(2, 5, 7), torch.randint(0, 7, (2, 5))
    mask = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1]])
    found = predictions_from(logits, ids, attention_mask=mask)
    assert found.losses.isnan().tolist() == [[False, False, True, True], [True, True, False, False]]
    assert ((found.ranks == 0) == found.losses.isnan()).all()
    losses = -dense(logits)[1, 2:4].gather(-1, ids[1, 3:, None])
    assert found.loss[1].item() == pytest.approx(losses.mean().item(), rel=1e-5)


def test_a_capture_keeps_them_from_its_own_pass():
    torch.manual_seed(0)
    model = GPT(Config(vocab_size=64, context_length=32, num_layers=2, num_heads=4, d_model=16)).eval()
    ids = torch.randint(0, 64, (2, 9))
    passes = 0

    def count(*_):
        nonlocal passes
        passes += 1

    hook = model.blocks[0].register_forward_hook(count)
    seen = regard.capture(model, inputs=(ids,), predictions=True)
    hook.remove()
    assert passes == 1
    expected = predictions_from(model(ids), ids)
    torch.testing.assert_close(seen.predictions.losses, expected.losses)
    assert torch.equal(seen.predictions.ranks, expected.ranks)
    assert regard.capture(model, inputs=(ids,)).predictions is None


class Vectors(nn.Module):
    """A model whose output is no logits of its tokens."""

    def __init__(self):
        super().__init__()
        self.model = GPT(Config(vocab_size=64, context_length=32, num_layers=1, num_heads=2, d_model=8))

    def forward(self, input_ids):
        return {"states": self.model(input_ids)}


def test_a_model_without_logits_and_a_block_are_refused_in_a_sentence():
    ids = torch.zeros(1, 4, dtype=torch.long)
    with pytest.raises(ValueError, match=r"predictions: expected a language model.*without predictions=True"):
        regard.capture(Vectors(), inputs=(ids,), predictions=True)
    with pytest.raises(ValueError, match="predictions: expected text= or inputs= beside it"):
        regard.capture(Vectors(), predictions=True)
    with pytest.raises(
        ValueError, match=r"expected a model that gives logits \(B, T, V\).*got torch.float32 of \(1, 7\)"
    ):
        predictions_from(torch.zeros(1, 7), ids)
    with pytest.raises(ValueError, match="whose largest id is 9, got 8 of them"):
        predictions_from(torch.zeros(1, 2, 8), torch.tensor([[1, 9]]))
