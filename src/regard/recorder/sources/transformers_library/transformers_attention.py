"""Regard's attention for Transformers' models: `model.set_attn_implementation("regard")`.

It computes with `attend` and returns a map where Transformers expects weights, so that
`output_attentions=True` builds no matrix. A capture listens to it as to any other implementation.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from regard.attention.attend import attend
from regard.attention.masks.base import Mask, full
from regard.attention.masks.named_masks import causal
from regard.attention.masks.tensor_masks import Padding
from regard.maps import AttentionMap
from regard.recorder.map_preparation import copy_if_written
from regard.recorder.sources.mask_tensors import as_bias, read_mask
from regard.recorder.sources.sdpa import autocast
from regard.recorder.sources.transformers_library.transformers_masks import RuleMask, rule_mask

# Names with "flash", "sdpa" or "flex" in them switch on other code in Transformers.
NAME = "regard"

IGNORED = frozenset(
    (
        "cache_position",
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "deterministic",
        "layer_idx",
        "max_length_k",
        "max_length_q",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "sliding_window",
        "target_dtype",
        "use_cache",
    )
)
"""Arguments that do not change the weights, or only in a way that the mask shows too."""


def register() -> None:
    """Register the attention and its mask function with Transformers."""
    try:
        from transformers.masking_utils import AttentionMaskInterface
        from transformers.modeling_utils import AttentionInterface
    except ImportError:
        raise ImportError("capture of Transformers' models needs Transformers 5.0 or later") from None
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, rule_mask)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, AttentionMap]:
    """Compute the attention of a Transformers layer: return its output (B, T, H, E) and its map.

    `query` is (B, H, T, D), `key` and `value` are (B, G, S, ·); the other arguments are those that
    Transformers passes. One that might change the attention and is not known here raises a ValueError that
    names it.
    """
    if unknown := sorted(name for name, x in others.items() if x is not None and name not in IGNORED):
        raise ValueError(
            f'attn_implementation "regard": {type(module).__name__} passes {", ".join(unknown)}, which is '
            'not supported: use "sdpa" or "eager", which a capture can listen to'
        )
    # Autocast lowers PyTorch's function, in whose place this one stands.
    query, key, value = autocast(query, key, value)
    mask, S = _rule(attention_mask, bool(is_causal), query.shape[2], key.shape[2])
    key, value = key[:, :, :S], value[:, :, :S]
    if position_bias is not None:
        bias = as_bias(position_bias[..., :S])
        mask = bias if mask is full else mask if bias is full else mask & bias
    if s_aux is not None:
        s_aux = s_aux.to(query.dtype).flatten()
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    options: dict[str, Any] = {"mask": mask, "scale": scale, "softcap": softcap, "sinks": s_aux}
    output, lse = attend(query, key, value, **options, dropout=dropout, return_lse=True)
    sinks = None if s_aux is None else s_aux.detach()
    q, k = query.detach(), copy_if_written(key.detach())
    m = AttentionMap(q=q, k=k, lse=lse, mask=mask, scale=scale, softcap=softcap, sinks=sinks)
    return output.transpose(1, 2).contiguous(), m


def _rule(mask: Tensor | None, is_causal: bool, T: int, S: int) -> tuple[Mask, int]:
    """Return the mask that a layer received as a rule, and the number of keys that have been written."""
    if mask is None:
        # As in eager attention, all keys are visible unless the layer is causal; then, as in sdpa, queries
        # are aligned with the first keys.
        if not is_causal or T == 1:
            return full, S
        return (causal, T) if T <= S else (causal.top_left, S)
    if isinstance(mask, RuleMask):
        return mask.rule, mask.keys
    # A mask function as FlashAttention's returns the padding (B, tokens); a sliding cache holds the last S of
    # them.
    if mask.ndim == 2:
        return Padding(mask[:, -S:].bool()), S
    return read_mask(mask, T, S)[:2]
