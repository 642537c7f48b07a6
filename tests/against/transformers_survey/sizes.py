"""Small configurations: every known size of a Transformers configuration, by the name of its field.

It knows names of fields and nothing about particular models; what a family needs besides is in `overrides`.
Windows, chunks and top-k are made shorter than the sequence of the survey, so that every mask matters.
"""

import dataclasses
import inspect
import re

VOCABULARY = 128
WINDOW = 5  # keys in a sliding window; the survey's sequences are several times as long
LAYERS_AT_MOST = 8

# The first pattern that matches the whole name of a field gives its value.
INTEGERS = [
    # Token ids have a range of their own, see `_token_id`.
    (r".*(vocab_size|num_embeddings|num_embeds)(_per_layer_input)?", VOCABULARY),
    (r"(type|modality_type)_vocab_size", 2),
    # Windows, chunks and selections, shorter than the sequence.
    (r"(sliding_window|_?sliding_window_size|attention_window_size|local_attention)", WINDOW),
    (r"(attention_chunk_size|local_attn_chunk_length|lsh_attn_chunk_length)", 8),
    (r"(index_topk|topk_tokens|compress_topk)", 6),
    (r"index_kpool", 2),
    (r"mm_tokens_per_image", 4),
    (r"context_size", 8),
    (r"(chunk_size|mamba_chunk_size|block_size|index_block_size)", 8),
    (r"(local_radius|global_block_size|block_length)", 3),
    (r"(local_attn_window|attention_window|local_window_size|window_size)", 4),
    # Layers.
    (r"num_kv_shared_layers", 0),
    (r"(num_hidden_layers|n_layers?|num_layers|layers|depth|num_blocks)", 2),
    (r".*_(num_)?(hidden_)?layers", 2),
    (r"num_(encoder|decoder|sparse_encoder|sparse_decoder)_(layers|blocks)", 2),
    (r"max_window_layers", 1),
    (r".*sparse_step", 2),
    (r"(num_nextn_predict_layers|num_mem_blocks|num_adapter_layers|num_residual_layers)", 1),
    (r"(attn_layer_period|expert_layer_period|full_attention_interval|full_attn_every_n_layers)", 2),
    (r"(attn_layer_offset|expert_layer_offset|first_k_dense_replace)", 1),
    # Recurrent layers.
    (r"(state_size|mamba_d_state|ssm_state_size)", 8),
    (r"(time_step_rank|mamba_dt_rank)", 4),
    (r"(n_groups|mamba_n_groups|mamba_ngroups)", 1),
    (r"(mamba_n_heads|mamba_num_heads)", 8),
    (r"(mamba_d_head|mamba_head_dim|mamba_headdim)", 8),
    # Heads.
    (r"(num_key_value_heads|num_kv_heads|n_head_kv|num_key_value_attention_heads|num_query_groups)", 2),
    (r"(swa_|cla_|global_|num_global_|.*_)?(num_key_value_heads)", 2),
    (r"(linear|index|mamba)_(num_key_heads|n_heads)", 2),
    (r"linear_num_value_heads", 4),
    (r"(num_heads|n_heads?|attention_heads|num_attention_heads|linear_num_heads)", 4),
    (r".*_(num_|n_)?(attention_)?heads", 4),
    (r"(encoder|decoder)_attention_heads", 4),
    (r"(qk_nope_head_dim|qk_rope_head_dim|v_head_dim|d_kv|head_dim|index_head_dim|dim_head)", 8),
    (r"qk_head_dim", 16),
    (r"(linear_key_head_dim|linear_value_head_dim|linear_head_dim|.*_head_dim|rotary_dim)", 8),
    (r"(kv_lora_rank|q_lora_rank|o_lora_rank|.*_lora_(rank|dim)|lora_rank)", 16),
    (r"query_pre_attn_scalar", 5),
    # Experts.
    (r"(num_experts_per_tok|num_experts_per_token|moe_topk|moe_k|top_k|top_k_experts)", 2),
    (r"(num_experts|num_local_experts|n_routed_experts|moe_num_experts|num_routed_experts)", 4),
    (r"(n_group|topk_group|n_shared_experts|num_shared_experts|moe_num_shared_experts)", 1),
    # Pictures and sound.
    (r"(num_channels|in_channels|in_chans|input_channels)", 3),
    (r"(num_mel_bins|n_mels|mel_bins|mel_dim|input_feat_per_channel|feature_size)", 16),
    (r"(num_frames|frames_per_clip)", 4),
    (r"(spatial_merge_size|temporal_patch_size|tubelet_size|merge_size)", 2),
    (r"(max_2d_position_embeddings)", 1024),
    (r"(max_position_embeddings|n_positions|n_ctx|max_(source|target|text|speech)_positions)", 128),
    (r"(max_sequence_length|max_seq_len|seq_length|context_length|max_seq_length|max_pos_emb)", 128),
    (r"(num_position_embeddings|max_num_patches|num_patches)", 64),
    # Widths.
    (r"(num_conv_pos_embedding_groups|num_groups)", 2),
    (r"upsample_groups", 32),
    (r"num_conv_pos_embeddings", 4),
    (r"(num_queries|num_query_tokens|num_image_tokens|resampler_n_latents|num_denoising)", 6),
    (r".*(intermediate_size|ffn_dim|ffn_hidden_size|mlp_dim|d_ff|inner_dim|feedforward_dim)", 48),
    (r"coordinate_size", 4),
    (r"shape_size", 8),
    (r"num_pos_feats", 16),
    (r"(d_latents|num_latents|vector_quantization_hidden_dimension)", 32),
    (r"hidden_size_per_layer_input", 8),
    (r".*(hidden_size|embed_dim|d_model|n_embd|embedding_size|projection_dim|_hidden_dim|output_dim)", 32),
    (r"(hidden_dim|dim|width|embedding_dim|emb_dim|word_embed_proj_dim|output_size|projection_size)", 32),
    (r"(codebook_dim|codevector_dim|proj_codevector_dim|latent_dim|lru_width|classifier_proj_size)", 32),
    (r"(.*_channels|.*_hidden_sizes?|.*_dim|.*_units|num_filters)", 32),
    (r"(codebook_size|num_codevectors_per_group)", 32),
    (r"(max_.*positions?(_embeddings)?|max_.*length)", 128),
]
# Fields that some defaults leave out, and that the model needs.
WHERE_NONE = {
    "vocab_size": VOCABULARY,
    "head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "prediction_length": 4,
    "pad_token_id": 0,
}
# Families with multimodal positions whose default configuration leaves their sections to the code.
SECTIONS = (
    "glm4v",
    "glm46v",
    "glm_ocr",
    "glm_image",
    "glmga",
    "qwen2_vl",
    "qwen2_5",
    "paddleocr",
    "colqwen2",
)
NEVER = re.compile(
    r"(num_labels|audio_channels|num_channels_out|pretraining_tp|chunk_size_feed_forward|.*kernel.*|.*stride.*"
    r"|.*padding.*|.*_layer_id|.*_index|.*ignore.*|.*coef.*|.*cost.*|.*_loss.*|sampling_rate|sample_rate)"
)


def small_values(config, picture=32, patch=8):
    """The fields of a configuration that are to be changed, with their small values; sub-configs as dicts."""
    values = {}
    fields = dict(vars(config))
    layered, count = _layers(config, fields)
    for name, value in fields.items():
        if name.startswith("_") or name in ("id2label", "label2id", "dtype", "sub_configs"):
            continue
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            values[name] = {"model_type": value.model_type} | small_values(value, picture, patch)
        elif value is None and name in WHERE_NONE:
            values[name] = WHERE_NONE[name]
        elif name in layered:
            values[name] = layered[name]
        elif name == "rope_parameters" and isinstance(value, dict):
            values[name] = _rope(value, config.model_type)
        elif name in ("image_size", "patch_size", "pretrain_image_size", "crop_size", "input_size"):
            values[name] = _of_same_kind(value, patch if name == "patch_size" else picture)
        elif (
            name == "window_size"
            and type(value) is int
            and ("depths" in fields or "fullatt_block_indexes" in fields)
        ):
            # In patches, where stages halve their picture until few are left; or in pixels, two patches wide.
            values[name] = 2 if "depths" in fields else 2 * patch
        elif (small := _integer(name, value)) is not None:
            values[name] = small
        elif isinstance(value, (list, tuple)) and (shorter := _list(name, value, count)) is not None:
            values[name] = shorter
    if count is not None:
        values["num_hidden_layers"] = count
    for name, value in fields.items():
        queries = name.replace("num_key_value_heads", "num_attention_heads")
        if queries != name and type(value) is int and value == fields.get(queries):
            values[name] = values[queries]  # some families must not group heads
    known = _arguments(type(config))
    return {name: value for name, value in values.items() if name in known or known == {"*"}}


def _arguments(kind):
    """What a configuration class takes by name; "*" where it takes anything."""
    if dataclasses.is_dataclass(kind):
        return {field.name for field in dataclasses.fields(kind)} | {"model_type"}
    parameters = inspect.signature(kind.__init__).parameters
    named = {name for name, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
    return named | {"model_type"} if len(named) > 1 else {"*"}


def _integer(name, value):
    """A small value for a field of this name, or None to leave it."""
    if type(value) is not int:
        return None
    if (token := _token_id(name, value)) is not None:
        return token
    if NEVER.fullmatch(name):
        return None
    for pattern, small in INTEGERS:
        if re.fullmatch(pattern, name):
            return min(value, small) if value > 0 else None
    return None


def _token_id(name, value):
    """An id inside the small vocabulary: the same for the same name, in the text's range for none."""
    fixed = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
    if name in fixed:
        return fixed[name]
    if re.fullmatch(r".*(_token_id|_token_index|_token|_token_ids)", name) and value >= 4:
        return VOCABULARY - 28 + sum(map(ord, name)) % 28
    return None


def _rope(value, model_type):
    """Rotary parameters for heads of 8; the sections of multimodal positions add up to half of what turns."""
    if any(isinstance(inner, dict) for inner in value.values()):
        return {k: _rope(x, model_type) if isinstance(x, dict) else x for k, x in value.items()}
    small = dict(value)
    if "mrope_section" in small or model_type.startswith(SECTIONS):
        small["mrope_section"] = [1, 1, 2 if small.get("partial_rotary_factor", 1.0) == 1.0 else 0]
    if "original_max_position_embeddings" in small:
        small["original_max_position_embeddings"] = 64
    return small


def _layers(config, fields):
    """Lists with an entry a layer, cut so that every kind of layer stays; and how many layers that are."""
    try:
        depth = getattr(config, "num_hidden_layers", None)
    except Exception:  # some configurations refuse to answer for all layers at once
        depth = None
    if not isinstance(depth, int) or depth < 2:
        return {}, None
    by_layer = {
        name: value
        for name, value in fields.items()
        if isinstance(value, list) and len(value) == depth and not name.startswith("stage")
    }
    if not by_layer:
        return {}, None
    kept = []
    for value in by_layer.values():
        kinds = {}
        for index, kind in enumerate(value):
            kinds.setdefault(str(kind), index)
        if len(kinds) <= LAYERS_AT_MOST // 2:  # else numbers that happen to be as many as there are layers
            missing = {str(kind) for kind in value} - {str(value[index]) for index in kept}
            kept += [index for kind, index in kinds.items() if kind in missing]
    kept = sorted(set(kept))[:LAYERS_AT_MOST]
    for index in range(depth):
        if len(kept) < 2 and index not in kept:
            kept = sorted([*kept, index])
    small = {name: [value[index] for index in kept] for name, value in by_layer.items()}
    return {name: [_size_in_list(name, x) for x in value] for name, value in small.items()}, len(kept)


def _size_in_list(name, value):
    small = _integer(name.removesuffix("_per_layer"), value)
    return value if small is None else small


def _list(name, value, count):
    """A shorter or smaller list where its name says what it holds."""
    if not value or any(type(x) is not int for x in value):
        return None
    if name == "depths":
        return [min(x, 2 if i < 2 else 1) for i, x in enumerate(value)]
    if name in ("num_heads", "num_attention_heads"):
        return [2 if i < 2 else 4 for i in range(len(value))]
    if name in ("hidden_sizes", "encoder_hidden_sizes", "neck_hidden_sizes", "embed_dims"):
        return [16 * 2 ** min(i, 2) for i in range(len(value))]
    if name in ("conv_dim", "tdnn_dim"):
        return [32] * len(value)
    if name in ("out_indices", "deepstack_visual_indexes", "global_attn_indexes", "fullatt_block_indexes"):
        return [min(count or 2, 2) - 1]
    if name.endswith(("_layers", "_idxs", "_layer_ids", "_indices")):
        return [x for x in value if x < (count or 2)] or [1]
    return None


def _of_same_kind(value, small):
    return type(value)([small] * len(value)) if isinstance(value, (list, tuple)) else small
