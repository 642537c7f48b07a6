"""Recomputes the attention inside PyTorch's fused inference kernels, which return only their final result.

The attention is computed again from the same inputs and weights and carried on to the kernel's own result, on
sampled rows. If the two differ, the layer is not certified. This file knows the arguments of the kernels, in
their order; `torch_mha` knows when they run.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear, relu

from regard.attention.attend import attend
from regard.attention.masks.base import Mask, full
from regard.attention.masks.named_masks import Padding
from regard.recorder.attention_call import AttentionCall
from regard.recorder.certificate import sampled_rows
from regard.recorder.sources.mask_recognition import as_rule


def attention(
    result: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> AttentionCall:
    """Describe a call of `torch._native_multi_head_attention`.

    `result` is what it returned; query, key and value are one tensor (B, T, width).
    """
    x, lengths = _as_padded(query)
    call, rows, is_token = _recompute(
        x, lengths, num_head, qkv_weight, qkv_bias, _kernel_mask(mask, mask_type)
    )
    mixed = linear(_merged(call.output, rows), proj_weight, proj_bias)
    return call._replace(problem=difference_problem(_select_rows(result, rows, is_token), mixed * is_token))


def encoder_layer(
    result: Tensor,
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> AttentionCall:
    """Describe a call of `torch._transformer_encoder_layer_fwd`: attention, feed-forward and both norms.

    `result` is what it returned.
    """

    def norm_1(x: Tensor) -> Tensor:
        return layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Tensor) -> Tensor:
        return layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def feed_forward(x: Tensor) -> Tensor:
        inner = linear(x, ffn_weight_1, ffn_bias_1)
        return linear(gelu(inner) if use_gelu else relu(inner), ffn_weight_2, ffn_bias_2)

    x, lengths = _as_padded(src)
    kernel_mask = _kernel_mask(mask, mask_type)
    normed = norm_1(x) if norm_first else x
    call, rows, is_token = _recompute(normed, lengths, num_heads, qkv_weight, qkv_bias, kernel_mask)
    x = x[:, rows] + linear(_merged(call.output, rows), proj_weight, proj_bias)
    x = x + feed_forward(norm_2(x)) if norm_first else norm_2((y := norm_1(x)) + feed_forward(y))
    return call._replace(problem=difference_problem(_select_rows(result, rows, is_token), x * is_token))


class RecomputedAttention(NamedTuple):
    """An attention computed again, and the rows of it to compare with the kernel's result."""

    call: AttentionCall
    rows: Tensor  # the numbers of the rows to compare
    is_token: Tensor  # (B, rows, 1), 0 for rows that are padding in a nested tensor


def _as_padded(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return a nested tensor as a padded one (B, T, width), and the lengths of its sequences."""
    if not x.is_nested:
        return x, None
    return x.to_padded_tensor(0.0), torch.tensor([len(row) for row in x.unbind()], device=x.device)


def _kernel_mask(mask: Tensor | None, mask_type: int | None) -> Mask:
    """Return the mask as the fused kernels read it: (T, S) is type 0, padding (B, S) type 1, (B, H, T, S)
    type 2.

    Every number that is not 0 masks, even one that was meant to be added to a score.
    """
    if mask is None:
        return full
    allowed = mask == 0
    return as_rule(allowed[:, None, None] if mask_type == 1 else allowed)


def _recompute(
    x: Tensor, lengths: Tensor | None, heads: int, weight: Tensor, bias: Tensor, mask: Mask
) -> RecomputedAttention:
    """Compute the attention of x (B, T, width) again, outside of the fused kernel."""
    B, T, width = x.shape
    projected = linear(x, weight, bias).chunk(3, -1)
    q, k, v = (part.view(B, T, heads, width // heads).transpose(1, 2) for part in projected)
    rows, is_token = sampled_rows(T).to(x.device), x.new_ones(B, 1, 1)
    if lengths is not None:
        mask = Padding(lengths) if mask is full else mask & Padding(lengths)
        is_token = (rows < lengths[:, None]).to(x.dtype)[..., None]
    output, lse = attend(q, k, v, mask=mask, return_lse=True)
    call = AttentionCall(q, k, v, output, lse, mask, (width // heads) ** -0.5)
    return RecomputedAttention(call, rows, is_token)


def _merged(output: Tensor, rows: Tensor) -> Tensor:
    """Return some rows of (B, H, T, E) as (B, rows, H · E)."""
    return output[:, :, rows].transpose(1, 2).flatten(2)


def _select_rows(result: Tensor, rows: Tensor, is_token: Tensor) -> Tensor:
    """Return some rows of a result (B, T, width), with 0 for padding."""
    padded = result.to_padded_tensor(0.0) if result.is_nested else result
    return padded[:, rows] * is_token


def difference_problem(result: Tensor, recomputed: Tensor) -> str | None:
    """Return a problem if the model's own result and the recomputed one differ by more than rounding."""
    if not result.numel():
        return None
    worst, size = float((result - recomputed).abs().max()), float(recomputed.abs().max())
    eps = torch.finfo(result.dtype).eps
    if worst <= (256 if eps < 1e-5 else 8) * eps * size:
        return None
    if worst != worst:
        return "the model's own output is NaN, which PyTorch gives for rows without a visible key"
    return f"the model's own output differs by {worst:.1e} from that of the captured attention"
