"""The names that authors use: how arguments, sizes and projections are recognised.

A name is only a first guess, which is verified by running the code (see `understand` and `projections`).
"""

from __future__ import annotations

import re

_ARGUMENTS = {
    "query": "q query queries query_states xq x_q q_x q_in input_q inputs_q Q qs query_input",
    "key": "k key keys key_states xk x_k k_x k_in input_k inputs_k K ks key_input",
    "value": "v value values value_states xv x_v v_x v_in input_v inputs_v V vs value_input",
    "x": """
        x input inputs hidden_states hidden inp emb embedding embeddings tokens sequence seq src xs h z X tgt
        latents target features feats x_in inputs_embeds data""",
    # Whisper calls the encoder's output `xa`.
    "context": """
        context memory encoder_hidden_states encoder_output encoder_out cond y kv other source xa xa mem enc
        inputs_kv encoder_outputs key_value key_value_states kv_states ctx enc_out enc_output encoder_states
        x_kv kv_x""",
    # Dive into Deep Learning passes `valid_lens`.
    "padding": """
        key_padding_mask padding_mask pad_mask src_key_padding_mask lengths valid_lens valid_len seq_lens
        src_lengths key_lengths""",
    "mask": """
        mask attn_mask attention_mask src_mask tgt_mask causal_mask m look_ahead_mask masks""",
    "cos": "cos cos_cached freqs_cos rotary_cos rope_cos cosine",
    "sin": "sin sin_cached freqs_sin rotary_sin rope_sin sine",
    "bias": "attn_bias attention_bias bias position_bias score_bias",
    "causal": """
        is_causal causal use_causal_mask causal_masking apply_causal_mask autoregressive use_mask
        masked""",
    "cache": """
        cache kv_cache past past_kv past_key_value past_key_values layer_past past_kvs kvcache
        layer_cache""",
    "use_cache": "use_cache return_cache use_kv_cache use_past",
    "start": """
        start_pos start_position offset cache_position pos_offset position_offset input_pos start_idx
        past_length past_len cache_len cur_pos""",
    "dropout": """
        dropout dropout_p p_drop drop_p attn_dropout p drop dropout_rate dropout_prob drop_rate drop_prob
        attn_drop attn_pdrop attn_dropout_p attention_dropout""",
    "training": "training train is_training",
    "scale": "scale scaling softmax_scale sm_scale",
    "window": "window window_size sliding_window local_window",
    "softcap": "softcap soft_cap logit_softcapping logits_soft_cap attn_logit_softcapping cap logit_cap",
    "heads": "num_heads n_heads n_head nhead nheads heads num_attention_heads h_count num_head",
    "weights": """
        need_weights return_weights return_attn return_attention output_attentions return_attn_weights
        return_attention_weights with_weights""",
    "average": "average_attn_weights",
    "lse": "return_lse with_lse return_softmax_lse",
    "rotary": """
        position_embeddings cos_sin freqs_cis freq_cis freqs_complex freqs pos_cis rope rope_cache rotary
        rotary_emb rotary_pos_emb rotary_freqs rope_freqs""",
    "grouped": "enable_gqa",
    "sinks": "sinks s_aux sink_logits attention_sinks learnable_sink",
    "head_width": "d_k dk head_dim d_head",
    "rows": "H height",
    "columns": "W width",
}
_SIZES = {
    "width": """
        d_model n_embd embed_dim hidden_size dim d_in in_dim input_dim emb_size embedding_dim n_embed
        width model_dim embed_size d_embed emb_dim hidden_dim d hidden embedding_size num_hiddens
        in_features channels embd_dim input_size query_dim n_state dmodel d_emb C dim_in in_channels n_feat
        num_channels in_planes n_channels d_model_size model_size feature_dim dim_model embeddings_dim
        model_width model_dimension emb hid_dim in_ch ch num_feats units n_units n_dim ndim embed_dims
        feats""",
    "out_width": "d_out out_dim output_dim out_features output_size dim_out inner_dim attn_dim out_channels",
    "context_width": """
        d_context context_dim kdim vdim cross_dim kv_dim encoder_dim cross_attention_dim dim_context""",
    # The Annotated Transformer has `h` heads.
    "heads": """
        num_heads n_heads n_head nhead heads num_attention_heads nheads num_head head_num h head_count
        H n_attention_heads attn_heads attention_heads no_of_heads heads_num num_attn_heads
        number_of_heads heads_count encoder_attention_heads decoder_attention_heads""",
    # In gpt-fast `n_local_heads` are those of keys and values.
    "groups": """
        num_kv_heads n_kv_heads num_key_value_heads n_kv_head kv_heads num_groups num_kv_groups
        n_groups num_query_groups kv_head_num G n_local_heads num_local_heads n_kv num_kv""",
    "head_width": """
        head_size head_dim d_head d_k d_v dim_head d_q head_width d_kv key_dim qk_dim dk dv dim_k dim_q dim_v
        dim_heads head_channels num_head_channels kv_channels dim_key dim_value attention_head_size""",
    "temperature": "temperature temper",
    "vocabulary": """
        vocab_size n_vocab num_embeddings vocabulary_size n_tokens vocab ntoken ntokens src_vocab_size
        tgt_vocab_size trg_vocab_size""",
    "inner_width": """
        d_ff dff ff_dim ffn_dim dim_feedforward mlp_dim intermediate_size n_inner d_inner ff_size d_hid d_mlp
        feed_forward_dim feedforward_dim ffn_hidden mlp_hidden_dim ff_hidden_dim hidden_features nhid
        encoder_ffn_dim decoder_ffn_dim""",
    "epsilon": "eps norm_eps rms_norm_eps layer_norm_eps layer_norm_epsilon epsilon",
    "rotary_base": "rope_theta rope_base rotary_base",
    "padding_id": "pad_idx padding_idx src_pad_idx trg_pad_idx tgt_pad_idx pad_token_id pad_id",
    "device": "device",
    "length": """
        max_seq_len block_size context_length max_len n_ctx seq_len context_len max_length
        max_position_embeddings sequence_length max_context n_positions ctx_len max_seq_length block
        seq_length T context_size num_tokens max_tokens""",
    "dropout": """
        dropout dropout_p attn_dropout p_drop dropout_rate attn_pdrop attention_dropout drop
        resid_dropout resid_pdrop attn_drop proj_drop drop_rate attention_probs_dropout_prob drop_prob
        p attention_dropout_prob hidden_dropout_prob attn_p resid_p proj_p attention_dropout_rate
        dropout_prob prob_dropout drop_p dropout_probability embd_pdrop embd_dropout emb_dropout
        embedding_dropout residual_dropout hidden_dropout""",
    "keep": "keep_prob keep_rate keep_p keep_probability p_keep prob_keep attn_keep_prob",
    "causal": "causal is_causal masked use_mask is_decoder autoregressive",
    "window": "window window_size sliding_window local_window",
    "softcap": "softcap soft_cap logit_softcapping attn_logit_softcapping logit_cap",
    "layer": "layer_idx layer_id layer_index layer",
    # The Annotated Transformer has `N` layers.
    "layers": """
        n_layer n_layers num_layers num_hidden_layers depth nlayers N num_blocks n_blocks encoder_layers
        decoder_layers num_encoder_layers num_decoder_layers""",
    "batch": "batch_size B",
    # The maximum of Llama's ModelArgs is for its cache, and is not the batch of a question.
    "max_batch": "max_batch_size max_bs",
}


def _table(words: dict[str, str]) -> dict[str, str]:
    return {word: meaning for meaning, names in words.items() for word in names.split()}


_ARGUMENT_OF, _SIZE_OF = _table(_ARGUMENTS), _table(_SIZES)


def argument(name: str) -> str | None:
    """Return the meaning of an argument of a forward pass, "mask" for `attn_mask`; None if it is unknown."""
    # As it is written first: `H` is a height, and `h` a hidden state.
    return _ARGUMENT_OF.get(name) or _ARGUMENT_OF.get(name.lower().strip("_"))


def size(name: str) -> str | None:
    """Return the meaning of a constructor's argument or a module's attribute, "heads" for `n_head`."""
    return _SIZE_OF.get(name) or _SIZE_OF.get(name.lower().strip("_"))


_PROJECTIONS = {
    # `c_attn` is GPT-2's, `w_pack` Baichuan's.
    "qkv": """
        qkv kqv c_attn in_proj query_key_value w_qkv wqkv qkv_proj to_qkv w_pack attn_in proj_qkv
        qkv_linear""",
    "kv": "kv to_kv kv_proj w_kv wkv key_value",
    # `c_proj` is GPT-2's, `unifyheads` Peter Bloem's, `w_concat` that of hyunwoongko/transformer.
    "out": """
        o out out_proj o_proj wo w_o proj c_proj to_out dense out_linear fc_out output linear_out
        final_linear unifyheads projection output_proj output_projection proj_out fc output_linear w_out
        wout linear_o output_layer out_layer attn_out final combine o_linear proj_o outputs
        out_projection final_projection fc_o w_concat out_projection_net unify_heads linear_final out_lin
        to_output w_output merge""",
}
_PROJECTION_OF = _table(_PROJECTIONS)
# Names of the output's projection that say no more than “a projection”: in `query.proj` another part decides.
_ANY_PROJECTION = ("proj", "projection", "dense", "fc")


def projection(path: str) -> str | None:
    """Return the projection that a parameter or layer is named after: query, key, value, out, qkv or kv."""
    parts = [re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", "_", part).lower() for part in path.split(".")]
    unnamed = None
    # The last part with a meaning decides: `query_block.0.key.weight` is a key.
    for part in reversed([part for part in parts if part not in ("weight", "bias") and not part.isdigit()]):
        bare = re.sub(r"_(weight|linear|layer|lin|fc|w|matrix|net|map|transform)$", "", part).strip("_")
        if (fused_or_out := _PROJECTION_OF.get(part) or _PROJECTION_OF.get(bare)) is not None:
            if part not in _ANY_PROJECTION:
                return fused_or_out
            unnamed = unnamed or fused_or_out
        word = re.sub(r"^(w|b|c|to|linear|fc|proj|lin|weight|weights|layer)_?(?=[qkv])", "", bare)
        word = re.sub(r"_?(proj|projection|s|_states)$", "", word)
        for role in ("query", "key", "value"):
            # “querie” is what is left of `queries` without its s.
            if word in (role[0], role, {"query": "querie"}.get(role, role)):
                return role
    return unnamed


_CACHE = re.compile(
    r"(^|_)(cache|caches|cached|past|kvcache)(_|$)|(^|_)(prev|old|stored)_(k|v|keys|values)$", re.I
)


_TABLE = re.compile(r"cos|sin|freq|rope|rotary|pos|mask|bias|seq|len", re.I)


def is_cache(name: str) -> bool:
    """Return whether an attribute is named like a cache of keys and values: `cache_k`, `past_keys`.

    A table that is computed once, `cos_cached`, is not one.
    """
    return _CACHE.search(name) is not None and _TABLE.search(name) is None


_CAUSAL = r"(?:\bcausal|\bautoregress|\bmasked (?:self|multi|attention)|\blook[- ]?ahead)"
_NOT_CAUSAL = r"\b(?:non|not|un|without|no)[ -]?(?:a )?(?:causal|masked)"
# "It isn't autoregressive", "it has no look-ahead mask", "causal masking is not used".
_DENIED = re.compile(
    rf"(?:n['’]t|\b(?:no|not|non|never|neither|nor|without|cannot|unlike))\b.*{_CAUSAL}"
    rf"|{_CAUSAL}\w*(?:\W+\w+){{0,2}}?\W+(?:is|are|was|were|does|do)(?:n['’]t|\W+(?:not|never))\b"
)
_ELSEWHERE = re.compile(r"\b(?:see|unlike|instead|rather|cannot)\b")  # the sentence speaks of other code


# Nothing else tells a model that predicts the next token from an encoder that forgot its mask. XLNet's model
# with this name reads both ways, unless it is told otherwise by perm_mask.
_NEXT_TOKEN = re.compile(
    r"^(?!XLNet).*(GPT|CausalLM|LMHeadModel|LanguageModel|Transducer|Decoder(?!.*Encoder))|^LM$"
)


def predicts_next_token(name: str) -> bool:
    """Return whether the name of a class is that of a model that predicts the next token."""
    return _NEXT_TOKEN.search(name) is not None


def says_causal(name: str) -> bool | None:
    """Return whether the name of a class or function calls it causal; None if it does not say."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name).lower().replace("_", " ")
    if re.search(rf"{_NOT_CAUSAL}|bidirectional|\bcross", words):
        return False
    return True if re.search(_CAUSAL, words) else None


def docstring_says_causal(doc: str) -> bool | None:
    """Return whether prose calls the attention causal; None if it does not say.

    Every sentence is read alone: "Causal. Cannot be used for bidirectional encoders." says causal.
    """
    text = re.sub(r"\s*\n(?!\s*\n)\s*", " ", doc.lower().replace("_", " "))  # lines of one paragraph
    sentences = [s for s in re.split(r"[.;:()\n](?:\s|$)|[()]", text) if not _ELSEWHERE.search(s)]
    if any(re.search(_CAUSAL, s) and not _DENIED.search(s) for s in sentences):
        return True
    return False if any(re.search(rf"{_NOT_CAUSAL}|\bbidirectional", s) for s in sentences) else None
