"""`capture(text=[A, B])`: texts are padded for every tokenizer, and each is read as it is alone."""

import pytest
import torch
from torch import nn

import regard
from tests.recorder.text_models import LEFT, LENGTHS, MODELS, TEXTS, TOKENIZERS, made, words
from tests.sampling import combine


def alone(weights, is_token, *, self_attention):
    """The weights (H, T, S) of one text of a batch, without its padding."""
    if is_token is None:
        return weights
    if weights.shape[-1] == len(is_token):
        weights = weights[..., is_token]
    return weights[:, is_token] if self_attention else weights


@pytest.mark.parametrize(("name", "kind"), combine(MODELS, list(TOKENIZERS)))
def test_each_text_of_a_batch_has_the_maps_that_it_has_alone(name, kind):
    model, tokenizer = made(name), TOKENIZERS[kind]()
    together = regard.capture(model, text=TEXTS, tokenizer=tokenizer)
    assert together.certificate.certified
    assert together.attention_mask.sum(1).tolist() == LENGTHS
    assert bool(together.attention_mask[:, -1].all()) == (name in LEFT)
    assert bool(together.attention_mask[:, 0].all()) == (name not in LEFT)
    for b, text in enumerate(TEXTS):
        one = regard.capture(model, text=text, tokenizer=tokenizer)
        assert one.attention_mask is None
        for layer in together.layers:
            is_token = together.attention_mask[b] if layer.stack != "decoder" else None
            weights = alone(
                together[layer.key].to_dense()[b], is_token, self_attention=layer.stack in ("", "encoder")
            )
            torch.testing.assert_close(weights, one[layer.key].to_dense()[0], atol=2e-6, rtol=0)


def test_texts_of_one_length_need_no_padding():
    seen = regard.capture(made("Llama"), text=["the cat", "a mat"], tokenizer=words())
    assert seen.attention_mask is None
    assert seen.tokens == [["the", "cat"], ["a", "mat"]]


class TakesNoMask(nn.Module):
    """A model of its own making: it would read padding as if it were text."""

    def __init__(self):
        super().__init__()
        self.embedding, self.attention = nn.Embedding(32, 16), regard.layers.Attention(16, 2)

    def forward(self, ids):
        return self.attention(self.embedding(ids))


def test_what_cannot_be_padded_is_refused():
    with pytest.raises(
        ValueError, match="TakesNoMask takes no attention_mask and would read padding as text"
    ):
        regard.capture(TakesNoMask(), text=TEXTS, tokenizer=words())
    assert regard.capture(TakesNoMask(), text=["the cat", "a mat"], tokenizer=words()).certificate.certified
    with pytest.raises(ValueError, match="at least one token in each text, got none in number 1"):
        regard.capture(made("GPT"), text=["the cat", ""], tokenizer=words())
    with pytest.raises(ValueError, match="text: expected a text or a list of texts"):
        regard.capture(made("GPT"), text=[], tokenizer=words())
