"""`capture(text=[A, B])`: texts of several lengths are padded for every tokenizer, and read as they are alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn

import regard
from regard.gpt import GPT, Config

TEXTS = ["the cat sat on a mat and then it slept", "a mat sat", "then the cat slept"]
LENGTHS = [len(text.split()) for text in TEXTS]
SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


def words() -> Tokenizer:
    numbers = {word: number for number, word in enumerate(["?", "the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "slept"])}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def padding_words() -> Tokenizer:
    tokenizer = words()
    tokenizer.enable_padding(direction="right", pad_id=4, pad_token="on")
    return tokenizer


TOKENIZERS: dict[str, Any] = {
    "tokenizers": words,
    "tokenizers that pad": padding_words,
    "without a pad token": lambda: transformers.PreTrainedTokenizerFast(tokenizer_object=words()),
    "with a pad token": lambda: transformers.PreTrainedTokenizerFast(tokenizer_object=words(), pad_token="?"),
}
MODELS: dict[str, Any] = {
    "GPT-2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=32,
            n_embd=16,
            n_layer=2,
            n_head=4,
            n_positions=64,
            bos_token_id=None,
            eos_token_id=None,
        )
    ),
    "Llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, num_key_value_heads=2)),
    "Llama without a head": lambda: transformers.LlamaModel(transformers.LlamaConfig(**SIZES)),
    "BERT": lambda: transformers.BertModel(transformers.BertConfig(**SIZES)),
    # Its positions begin after that of its padding, whatever position_ids say.
    "RoBERTa decoder": lambda: transformers.RobertaForCausalLM(
        transformers.RobertaConfig(**SIZES, is_decoder=True, pad_token_id=0)
    ),
    "T5": lambda: transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=32, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4, decoder_start_token_id=0
        )
    ),
    "GPT": lambda: GPT(Config(vocab_size=32, context_length=64, num_layers=2, d_model=16, num_heads=4)),
    "GPT with learned positions": lambda: GPT(
        Config(vocab_size=32, context_length=64, num_layers=2, d_model=16, num_heads=4, positions="learned")
    ),
}
LEFT = {"GPT-2", "Llama", "GPT", "GPT with learned positions"}


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = MODELS[name]().eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.3)
    return model


def alone(weights: Tensor, is_token: Tensor | None, *, self_attention: bool) -> Tensor:
    """The weights (H, T, S) of one text of a batch, without its padding."""
    if is_token is None:
        return weights
    if weights.shape[-1] == len(is_token):
        weights = weights[..., is_token]
    return weights[:, is_token] if self_attention else weights


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_each_text_of_a_batch_has_the_maps_that_it_has_alone(name: str, kind: str) -> None:
    model, tokenizer = made(name), TOKENIZERS[kind]()
    together = regard.capture(model, text=TEXTS, tokenizer=tokenizer)
    assert together.certificate.certified
    assert together.attention_mask is not None
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


def test_texts_of_one_length_need_no_padding() -> None:
    seen = regard.capture(made("Llama"), text=["the cat", "a mat"], tokenizer=words())
    assert seen.attention_mask is None
    assert seen.tokens == [["the", "cat"], ["a", "mat"]]


class TakesNoMask(nn.Module):
    """A model of its own making: it would read padding as if it were text."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.attention = nn.Embedding(32, 16), regard.layers.Attention(16, 2)

    def forward(self, ids: Tensor) -> Tensor:
        output: Tensor = self.attention(self.embedding(ids))
        return output


def test_what_cannot_be_padded_is_refused() -> None:
    with pytest.raises(
        ValueError, match="TakesNoMask takes no attention_mask and would read padding as text"
    ):
        regard.capture(TakesNoMask(), text=TEXTS, tokenizer=words())
    assert regard.capture(TakesNoMask(), text=["the cat", "a mat"], tokenizer=words()).certificate.certified
    with pytest.raises(ValueError, match="at least one token in each text, got none in number 1"):
        regard.capture(made("GPT"), text=["the cat", ""], tokenizer=words())
    with pytest.raises(ValueError, match="text: expected a text or a list of texts"):
        regard.capture(made("GPT"), text=[], tokenizer=words())
