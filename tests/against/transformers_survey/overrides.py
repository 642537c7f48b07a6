"""What particular model types need besides small sizes: facts, for fields that have no general rule."""

TIMES = {"prediction_length": 4, "context_length": 16, "lags_sequence": [1, 2, 3], "num_time_features": 1}
ROTARY = {"rope_type": "default", "rope_theta": 10000.0}
EXPERTS = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16}
OVERRIDES = {
    "autoformer": TIMES,
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 8},
    "blt": {"encoder_hash_byte_group_size": [3], "encoder_hash_byte_group_vocab": 64},
    "bridgetower": {
        "hidden_size": 128,
        "text_config": {"hidden_size": 128},
        "vision_config": {"hidden_size": 128},
    },
    "bridgetower_vision_model": {"hidden_size": 128},
    "bros": {"dim_bbox_sinusoid_emb_2d": 16, "dim_bbox_sinusoid_emb_1d": 2, "dim_bbox_projection": 8},
    "chameleon": {"vocabulary_map": {f"IMGIMG{x}": 64 + i for i, x in enumerate("ABCD")} | {"<image>": 100}},
    "cohere_compass": {"text_config": {"rope_parameters": {"full_attention": ROTARY}}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": ROTARY}},
    "clvp": {"text_config": {"hidden_size": 128}, "speech_config": {"hidden_size": 128}},
    "clvp_encoder": {"hidden_size": 128},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "decision_transformer": {"state_dim": 5, "act_dim": 3, "max_ep_len": 64},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense", "sparse"], "n_group": 1, "topk_group": 1}},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"], "n_group": 1, "topk_group": 1},
    "deepseek_v2": {"num_experts_per_tok": 2, "topk_method": "greedy"},
    "dia": {"delay_pattern": [0, 1, 2, 3], "decoder_config": {"num_channels": 4}},
    "diffusion_gemma": {"text_config": EXPERTS},
    "diffusion_gemma_text": EXPERTS,
    "falcon_h1": {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_ssm": 64},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 5},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "mamba_n_heads": 8, "mamba_d_head": 8},
    "informer": TIMES,
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "lilt": {"hidden_size": 48},
    "llama4_vision_model": {"intermediate_size": 128, "projector_input_dim": 32, "projector_output_dim": 32},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "nemotron": {"num_key_value_heads": 2},
    "perceiver": {"num_self_attends_per_block": 2},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {
        "is_decoder": True,
        "axial_pos_shape": [8, 8],
        "axial_pos_embds_dim": [16, 16],
        "attention_head_size": 8,
    },
    "time_series_transformer": TIMES,
    "zamba": {
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "num_hidden_layers": 4,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
    },
}
