"""The attention inside PyTorch's fused inference kernels, which return only their final result.

The kernel runs as it does. Then the attention is computed again from the same inputs and weights and carried
on to the kernel's own result, on sampled rows; if the two differ, the layer is not certified. This file knows
the arguments of the kernels, in their order; `torch_mha` knows when they run.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear

from regard.attention.attend import attend
from regard.attention.masks.base import Mask, full
from regard.attention.masks.tensor_masks import Documents, Padding
from regard.recorder.attention_call import AttentionCall
from regard.recorder.certificates.certificate import sampled_rows
from regard.recorder.sources.transformers_library.mask_recognition import as_rule

NAN_OUTPUT = "the model's own output is NaN, which PyTorch gives for rows without a visible key"


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


class EncoderLayer(NamedTuple):
    """The arguments of `torch._transformer_encoder_layer_fwd`: attention, feed-forward and both norms."""

    src: Tensor
    embed_dim: int
    num_heads: int
    qkv_weight: Tensor
    qkv_bias: Tensor
    proj_weight: Tensor
    proj_bias: Tensor
    use_gelu: bool
    norm_first: bool
    eps: float
    norm_weight_1: Tensor
    norm_bias_1: Tensor
    norm_weight_2: Tensor
    norm_bias_2: Tensor
    ffn_weight_1: Tensor
    ffn_bias_1: Tensor
    ffn_weight_2: Tensor
    ffn_bias_2: Tensor
    mask: Tensor | None = None
    mask_type: int | None = None

    def norm_1(self, x: Tensor) -> Tensor:
        return layer_norm(x, (self.embed_dim,), self.norm_weight_1, self.norm_bias_1, self.eps)

    def norm_2(self, x: Tensor) -> Tensor:
        return layer_norm(x, (self.embed_dim,), self.norm_weight_2, self.norm_bias_2, self.eps)

    def after_attention(self, x: Tensor) -> Tensor:
        """Return the layer's result for the sum x of its input and its attention."""
        x = x if self.norm_first else self.norm_1(x)
        inner = linear(self.norm_2(x) if self.norm_first else x, self.ffn_weight_1, self.ffn_bias_1)
        inner = gelu(inner) if self.use_gelu else inner.relu_()
        x = linear(inner, self.ffn_weight_2, self.ffn_bias_2).add_(x)
        return x if self.norm_first else self.norm_2(x)


def encoder_layer(result: Tensor, layer: EncoderLayer) -> AttentionCall:
    """Describe the attention of an encoder layer whose kernel returned `result`."""
    x, lengths = _as_padded(layer.src)
    call, rows, is_token = _recompute(
        layer.norm_1(x) if layer.norm_first else x,
        lengths,
        layer.num_heads,
        layer.qkv_weight,
        layer.qkv_bias,
        _kernel_mask(layer.mask, layer.mask_type),
    )
    mixed = linear(_merged(call.output, rows), layer.proj_weight, layer.proj_bias)
    recomputed = layer.after_attention(x[:, rows] + mixed) * is_token
    return call._replace(problem=difference_problem(_select_rows(result, rows, is_token), recomputed))


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
    rows, is_token = sampled_rows(T, device=x.device), x.new_ones(B, 1, 1)
    if lengths is not None:
        # The kernel computes no row of padding: it is a document of its own, whose keys are hidden.
        is_padding = torch.arange(T, device=x.device) >= lengths[:, None]  # (B, T)
        padding = (
            Padding(lengths) & Documents(is_padding.long()) if bool(is_padding.any()) else Padding(lengths)
        )
        mask = padding if mask is full else mask & padding
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
        return NAN_OUTPUT
    return f"the model's own output differs by {worst:.1e} from that of the captured attention"
