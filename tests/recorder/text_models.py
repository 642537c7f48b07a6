"""Small models of several families, tokenizers for them, and texts of several lengths."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn

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
    known = ["?", "the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "slept"]
    numbers = {word: number for number, word in enumerate(known)}
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
