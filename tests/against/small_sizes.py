"""Sizes of small models of Transformers, in the words of its configurations."""

LLAMA = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
BERT = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
GPT2 = {"vocab_size": 97, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
GPT2 |= {"bos_token_id": None, "eos_token_id": None}
# DeepSeek's attention, and its experts.
LATENT = {"num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16}
LATENT |= {"qk_rope_head_dim": 8, "v_head_dim": 8, "qk_nope_head_dim": 8}
EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
EXPERTS |= {"moe_intermediate_size": 16}
