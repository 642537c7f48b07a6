"""An attention for Transformers' models: `model.set_attn_implementation("regard")`.

It computes with `attend` and gives a map where Transformers expects weights, so that `output_attentions=True`
costs no matrix. A capture listens to it as to any other implementation.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from regard.attention.attend import attend
from regard.attention.masks.base import Mask, full
from regard.attention.masks.named import Padding, causal
from regard.maps import AttentionMap
from regard.recorder.recording import unwritten
from regard.recorder.sources.mask_recognition import as_bias, read_mask
from regard.recorder.sources.sdpa import autocast
from regard.recorder.sources.transformers_masks import RuleMask, rule_mask

NAME = "regard"  # names with "flash", "sdpa" or "flex" in them switch on other code in Transformers

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
"""Arguments that say nothing of the weights, or what the mask says as well."""


def register() -> None:
    """Make the attention known to Transformers."""
    try:
        from transformers.masking_utils import AttentionMaskInterface
        from transformers.modeling_utils import AttentionInterface
    except ImportError:
        raise ImportError("capture of Transformers' models needs a Transformers of 4.54 or later") from None
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
    """What a Transformers layer calls: q (B, H, T, D), k and v (B, G, S, ·) to output (B, T, H, E) and a map.

    An argument that might change the attention and is not known here is refused by name.
    """
    if unknown := sorted(name for name, x in others.items() if x is not None and name not in IGNORED):
        raise ValueError(
            f'attn_implementation "regard": {type(module).__name__} passes {", ".join(unknown)}, which it '
            'does not know and will not ignore: use "sdpa" or "eager", which a capture can listen to'
        )
    query, key, value = autocast(query, key, value)
    mask, S = _rule(attention_mask, bool(is_causal), query.shape[2], key.shape[2])
    key, value = key[:, :, :S], value[:, :, :S]
    if position_bias is not None:
        bias = as_bias(position_bias[..., :S])
        mask = bias if mask is full else mask if bias is full else mask & bias
    if s_aux is not None:
        s_aux = s_aux.to(query.dtype).flatten()
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    output, lse = attend(
        query,
        key,
        value,
        mask=mask,
        scale=scale,
        softcap=softcap,
        sinks=s_aux,
        dropout=dropout,
        return_lse=True,
    )
    sinks = None if s_aux is None else s_aux.detach()
    q, k = query.detach(), unwritten(key.detach())
    m = AttentionMap(q=q, k=k, lse=lse, mask=mask, scale=scale, softcap=softcap, sinks=sinks)
    return output.transpose(1, 2).contiguous(), m


def _rule(mask: Tensor | None, is_causal: bool, T: int, S: int) -> tuple[Mask, int]:
    """The mask that a layer was given as a rule, and how many of its keys there are to see."""
    if mask is None:
        # As for eager attention, all keys are seen, unless the layer says otherwise; then, as for sdpa, from
        # the first key on.
        if not is_causal or T == 1:
            return full, S
        return (causal, T) if T <= S else (causal.top_left, S)
    if isinstance(mask, RuleMask):
        return mask.rule, mask.keys
    if mask.ndim == 2:
        return Padding(mask[:, -S:].bool()), S
    return read_mask(mask, T, S)[:2]
