"""Small models of several families, tokenizers for them, and texts of several lengths."""

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn

from regard.gpt import GPT, Config
from tests.against.small_sizes import BERT, GPT2, LLAMA
from tests.against.test_capture_families import T5, build

TEXTS = ["the cat sat on a mat and then it slept", "a mat sat", "then the cat slept"]
LENGTHS = [len(text.split()) for text in TEXTS]


def words():
    known = ["?", "the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "slept"]
    numbers = {word: number for number, word in enumerate(known)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def padding_words():
    tokenizer = words()
    tokenizer.enable_padding(direction="right", pad_id=4, pad_token="on")
    return tokenizer


TOKENIZERS = {
    "tokenizers": words,
    "tokenizers that pad": padding_words,
    "without a pad token": lambda: transformers.PreTrainedTokenizerFast(tokenizer_object=words()),
    "with a pad token": lambda: transformers.PreTrainedTokenizerFast(tokenizer_object=words(), pad_token="?"),
}
TWO_LAYERS = {"num_hidden_layers": 2}
OF_TRANSFORMERS = {
    "GPT-2": ("GPT2LMHeadModel", GPT2 | {"n_layer": 2}),
    "Llama": ("LlamaForCausalLM", LLAMA | TWO_LAYERS),
    "Llama without a head": ("LlamaModel", LLAMA | TWO_LAYERS),
    "BERT": ("BertModel", BERT),
    # Its positions begin after that of its padding, whatever position_ids say.
    "RoBERTa decoder": ("RobertaForCausalLM", BERT | {"is_decoder": True}),
    "T5": ("T5ForConditionalGeneration", T5),
}
GPTS = {"GPT": {}, "GPT with learned positions": {"positions": "learned"}}
MODELS = [*OF_TRANSFORMERS, *GPTS]
LEFT = {"GPT-2", "Llama", "GPT", "GPT with learned positions"}


def made(name):
    torch.manual_seed(0)
    if name in OF_TRANSFORMERS:
        return build(*OF_TRANSFORMERS[name])
    model = GPT(Config(vocab_size=32, context_length=64, num_layers=2, d_model=16, num_heads=4, **GPTS[name]))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.3)
    return model.eval()
