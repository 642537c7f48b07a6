"""Small random models of five families, as folders that both Transformers and vLLM open."""

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    Qwen3Config,
)

SIZES = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,  # so that heads differ and attend unevenly
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
HEAD_WIDTH = 32  # which is not hidden_size / num_attention_heads; the CPU's kernel has no smaller one
WINDOW = 40


CONFIGS = {
    "llama": (LlamaConfig, {}),
    "qwen3": (Qwen3Config, {}),
    "mistral": (MistralConfig, {"sliding_window": WINDOW}),
    "gemma2": (
        Gemma2Config,
        {"sliding_window": WINDOW, "query_pre_attn_scalar": 20, "attn_logit_softcapping": 3.0}
        | {"hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True},  # vLLM knows no other
    ),
    "gpt_oss": (GptOssConfig, {"sliding_window": WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2}),
}


def save_model(family, folder):
    """Write a model of random weights to a folder, and return it."""
    torch.manual_seed(0)
    kind, settings = CONFIGS[family]
    config = kind(**SIZES | {"head_dim": HEAD_WIDTH} | settings)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(parameter, std=2.0)
    model.save_pretrained(folder)
    return model
