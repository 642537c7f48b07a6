"""What went on inside PyTorch's fused inference kernels, which show only what comes out at their end.

The attention is computed beside them, from the same inputs and weights, and carried on to the kernel's own
result, on sampled rows: what is shown is what the model used, or it says that it is not. This file knows the
kernels' arguments, in their order; when they run is `torch_source`'s business.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear, relu

from regard.attention.attend import attend
from regard.attention.masks.base import Mask, full
from regard.attention.masks.named import Padding
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
    """`torch._native_multi_head_attention`: query, key and value are one tensor (B, T, width)."""
    x, lengths = _opened(query)
    call, rows, real = _beside(x, lengths, num_head, qkv_weight, qkv_bias, _kernel_rule(mask, mask_type))
    mixed = linear(_merged(call.output, rows), proj_weight, proj_bias)
    return call._replace(problem=difference(_rows(result, rows, real), mixed * real))


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
    """`torch._transformer_encoder_layer_fwd`: attention, feed-forward part and both norms of a layer."""

    def norm_1(x: Tensor) -> Tensor:
        return layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Tensor) -> Tensor:
        return layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def feed_forward(x: Tensor) -> Tensor:
        inner = linear(x, ffn_weight_1, ffn_bias_1)
        return linear(gelu(inner) if use_gelu else relu(inner), ffn_weight_2, ffn_bias_2)

    x, lengths = _opened(src)
    rule = _kernel_rule(mask, mask_type)
    call, rows, real = _beside(norm_1(x) if norm_first else x, lengths, num_heads, qkv_weight, qkv_bias, rule)
    x = x[:, rows] + linear(_merged(call.output, rows), proj_weight, proj_bias)
    x = x + feed_forward(norm_2(x)) if norm_first else norm_2((y := norm_1(x)) + feed_forward(y))
    return call._replace(problem=difference(_rows(result, rows, real), x * real))


class Sidecar(NamedTuple):
    call: AttentionCall
    rows: Tensor  # those to be compared
    real: Tensor  # (B, rows, 1), 0 for those that are padding in a nested tensor


def _opened(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """A nested tensor as a plain one (B, T, width), and the lengths of its sequences."""
    if not x.is_nested:
        return x, None
    return x.to_padded_tensor(0.0), torch.tensor([len(row) for row in x.unbind()], device=x.device)


def _kernel_rule(mask: Tensor | None, mask_type: int | None) -> Mask:
    """What the fused kernels make of a mask: (T, S) is type 0, padding (B, S) type 1, (B, H, T, S) type 2.

    Every number in it that is not 0 hides, also one that was to be added to a score.
    """
    if mask is None:
        return full
    allowed = mask == 0
    return as_rule(allowed[:, None, None] if mask_type == 1 else allowed)


def _beside(
    x: Tensor, lengths: Tensor | None, heads: int, weight: Tensor, bias: Tensor, rule: Mask
) -> Sidecar:
    """The attention of x (B, T, width), computed in the open beside the fused kernel."""
    B, T, width = x.shape
    projected = linear(x, weight, bias).chunk(3, -1)
    q, k, v = (part.view(B, T, heads, width // heads).transpose(1, 2) for part in projected)
    rows, real = sampled_rows(T).to(x.device), x.new_ones(B, 1, 1)
    if lengths is not None:
        rule = Padding(lengths) if rule is full else rule & Padding(lengths)
        real = (rows < lengths[:, None]).to(x.dtype)[..., None]
    output, lse = attend(q, k, v, mask=rule, return_lse=True)
    return Sidecar(AttentionCall(q, k, v, output, lse, rule, (width // heads) ** -0.5), rows, real)


def _merged(output: Tensor, rows: Tensor) -> Tensor:
    """Some rows of (B, H, T, E) as (B, rows, H · E)."""
    return output[:, :, rows].transpose(1, 2).flatten(2)


def _rows(result: Tensor, rows: Tensor, real: Tensor) -> Tensor:
    """Some rows of a result (B, T, width), with 0 for padding."""
    padded = result.to_padded_tensor(0.0) if result.is_nested else result
    return padded[:, rows] * real


def difference(used: Tensor, again: Tensor) -> str | None:
    """What is wrong if the model's own result and the one computed beside it differ by more than rounding."""
    if not used.numel():
        return None
    worst, size = float((used - again).abs().max()), float(again.abs().max())
    eps = torch.finfo(used.dtype).eps
    if worst <= (256 if eps < 1e-5 else 8) * eps * size:
        return None
    if worst != worst:
        return "the model's own output is not a number, as PyTorch gives for rows that may look at nothing"
    return f"the model's own output differs by {worst:.1e} from that of the attention shown"
