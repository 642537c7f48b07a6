"""Small models of many families with random weights, and batches as collators make them."""

import functools
import math

import torch
import transformers
from torch import nn
from torch.nn import functional

from regard.gpt import GPT, Config

PAD, VOCABULARY, WINDOW, LENGTH = 0, 48, 4, 12
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": PAD,
}
GROUPED = SIZES | {"num_key_value_heads": 2, "bos_token_id": None, "eos_token_id": None}

VISION = transformers.SiglipVisionConfig(
    hidden_size=16,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    image_size=8,
    patch_size=4,
)


class PlainBlock(nn.Module):
    """One block of `PlainGPT`, which a learner might have written."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.feed_forward = nn.Sequential(
            nn.Linear(d_model, 2 * d_model), nn.GELU(), nn.Linear(2 * d_model, d_model)
        )

    def forward(self, x, mask):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # (B, H, T, T)
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(B, T, D))
        return x + self.feed_forward(x)


class PlainGPT(nn.Module):
    """A GPT in plain PyTorch, with learned positions and a mask of documents.

    `fault` is what its author forgot: "causal", "documents", "padding", "positions", that "texts" are apart,
    or "" for nothing.
    """

    def __init__(self, fault=""):
        super().__init__()
        self.fault = fault
        self.tokens, self.places = nn.Embedding(VOCABULARY, 32), nn.Embedding(64, 32)
        self.blocks = nn.ModuleList(PlainBlock(32, 4) for _ in range(2))
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, idx, targets=None, document_ids=None, attention_mask=None):
        B, T = idx.shape
        mask = torch.ones(B, 1, T, T, dtype=torch.bool)
        places = torch.arange(T).expand(B, T)
        if self.fault != "causal":
            mask = mask.tril()
        if document_ids is not None:
            same = document_ids[:, None, :, None] == document_ids[:, None, None, :]
            if self.fault != "documents":
                mask = mask & same
            if self.fault != "positions":
                places = same[:, 0].tril().sum(-1) - 1
        if attention_mask is not None and self.fault != "padding":
            mask = (mask & (attention_mask[:, None, None] != 0)) | torch.eye(T, dtype=torch.bool)
        x = self.tokens(idx) + self.places(places)
        if self.fault == "texts":
            x = x + x.mean(0, keepdim=True)
        for block in self.blocks:
            x = block(x, mask)
        logits = self.head(x)
        if targets is None:
            return logits, None
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


NARROW = GROUPED | {"head_dim": 8}
SLIDING = NARROW | {"sliding_window": WINDOW}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
ENCODING = {"vocab_size": VOCABULARY, "d_model": 32, "pad_token_id": PAD}
OWN = {"vocab_size": VOCABULARY, "context_length": 64, "num_layers": 2, "d_model": 32, "num_heads": 4}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 2}
LINEAR |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
BART = {"encoder_layers": 1, "encoder_attention_heads": 4, "encoder_ffn_dim": 48}
BART |= {"decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48}
BART |= {"max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2}
BART |= {"decoder_start_token_id": 2, "forced_eos_token_id": None}
FAMILIES = {
    "Llama": ("LlamaForCausalLM", GROUPED),
    "Mistral": ("MistralForCausalLM", SLIDING),
    "Gemma 3": (
        "Gemma3ForCausalLM",
        SLIDING | {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2},
    ),
    "Gemma 2": ("Gemma2ForCausalLM", SLIDING | {"attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8}),
    "gpt-oss": ("GptOssForCausalLM", SLIDING | EXPERTS),
    "GPT-2": ("GPT2LMHeadModel", GPT2 | {"pad_token_id": PAD, "bos_token_id": None, "eos_token_id": None}),
    "BERT": ("BertForMaskedLM", SIZES),
    "T5": (
        "T5ForConditionalGeneration",
        ENCODING | {"d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": PAD},
    ),
    "BART": ("BartForConditionalGeneration", ENCODING | BART),
    "Qwen3-Next": (
        "Qwen3NextForCausalLM",
        NARROW
        | LINEAR
        | {"layer_types": ["linear_attention", "full_attention"], "num_experts": 2, "num_experts_per_tok": 1}
        | {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    ),
    "Llama 4": (
        "Llama4ForCausalLM",
        NARROW
        | EXPERTS
        | {"intermediate_size_mlp": 48, "attention_chunk_size": WINDOW}
        | {"layer_types": ["chunked_attention", "full_attention"]},
    ),
    "PaliGemma": (
        "PaliGemmaForConditionalGeneration",
        {"text_config": transformers.GemmaConfig(**NARROW), "vision_config": VISION, "pad_token_id": PAD}
        | {"image_token_id": VOCABULARY - 1, "projection_dim": 32, "hidden_size": 32},
    ),
}
OWN_MODELS = {
    "GPT": lambda: GPT(Config(**OWN, window=WINDOW, positions="rotary")),
    "GPT with learned positions": lambda: GPT(Config(**OWN)),
    "plain GPT": PlainGPT,
}
MODELS = [*FAMILIES, *OWN_MODELS]


def new_model(name):
    """Return a model with the weights that it begins with."""
    if name in OWN_MODELS:
        return OWN_MODELS[name]()
    kind = getattr(transformers, FAMILIES[name][0])
    return kind(kind.config_class(**FAMILIES[name][1]))


@functools.cache
def _built(name):
    torch.manual_seed(0)
    return strengthened(new_model(name))


def strengthened(model):
    """Return a model whose weights are greater: with those of 0.02, a leak would look like rounding."""
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(5.0)
            elif parameter.ndim == 1 and parameter.abs().max() == 0:
                parameter.normal_(0, 0.1)
    return model


def small_model(name, implementation=None):
    """Return a model, built once, with this implementation of attention, or with its first one."""
    model = _built(name)
    first = _first_implementation(name)  # asked before it is changed for the first time
    if hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation(implementation or first)
    return model


@functools.cache
def _first_implementation(name):
    return getattr(getattr(_built(name), "config", None), "_attn_implementation", None)


def tokens(B=2, T=LENGTH, seed=0):
    """Return random token ids (B, T) without the padding token."""
    return torch.randint(3, VOCABULARY, (B, T), generator=torch.Generator().manual_seed(seed))


def is_token(lengths, T=LENGTH, side="right"):
    """Return which tokens (B, T) of texts of these lengths are no padding."""
    right = torch.arange(T) < torch.tensor(lengths)[:, None]
    return right if side == "right" else right.flip(1)


def padded(side, lengths=(LENGTH, 8)):
    """Return a padded batch with its mask."""
    keep = is_token(lengths, side=side)
    ids = tokens(len(lengths)).masked_fill(~keep, PAD)
    return {"input_ids": ids, "attention_mask": keep.long()}


def restarting(lengths):
    """Return positions (1, T) that begin again with each document."""
    return torch.cat([torch.arange(n) for n in lengths])[None]


def packed(lengths=(5, 7)):
    """Return a batch of one text of several documents, as Transformers' flattening collator makes it."""
    positions = restarting(lengths)
    return {"input_ids": tokens(1, positions.shape[1]), "position_ids": positions, "use_cache": False}


def prefixed():
    """Return a batch of texts whose first tokens are a prefix, as PaliGemma's token types say."""
    types = (torch.arange(LENGTH) >= 6).long().expand(2, LENGTH)
    return {"input_ids": tokens(), "token_type_ids": types, "attention_mask": torch.ones_like(types)}
