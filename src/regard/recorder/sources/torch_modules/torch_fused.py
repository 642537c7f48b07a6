"""The attention inside PyTorch's fused inference kernels, which return only their final result.

On a CPU, the kernel of an encoder layer calls a few operations in turn, and a capture calls the same ones:
the result has the same bits, and the attention is seen. Elsewhere the attention is computed again from the
same inputs and weights and carried on to the kernel's own result, on sampled rows; if the two differ, the
layer is not certified. This file knows the arguments of the kernels, in their order; `torch_mha` knows when
they run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
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
from regard.support.torch_internals import masked_softmax, transform_bias_rescale_qkv

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


def encoder_layer(run: Callable[..., Tensor], layer: EncoderLayer) -> tuple[Tensor, AttentionCall]:
    """Return the result of an encoder layer, which the kernel `run` gives, and its attention."""
    x, mask = layer.src, layer.mask
    if (
        x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.float64)
        and not x.is_nested
        and x.numel()
        and (mask is None or mask.dtype == torch.bool)
        and _operations_agree(run, x.dtype, layer.norm_first, layer.use_gelu, layer.mask_type)
    ):
        return _run_operations(layer)
    result = run(*layer)
    x, lengths = _as_padded(x)
    normed = layer.norm_1(x) if layer.norm_first else x
    call, rows, is_token = _recompute(
        normed,
        lengths,
        layer.num_heads,
        layer.qkv_weight,
        layer.qkv_bias,
        _kernel_mask(mask, layer.mask_type),
    )
    mixed = linear(_merged(call.output, rows), layer.proj_weight, layer.proj_bias)
    recomputed = layer.after_attention(x[:, rows] + mixed) * is_token
    return result, call._replace(problem=difference_problem(_select_rows(result, rows, is_token), recomputed))


def _run_operations(layer: EncoderLayer) -> tuple[Tensor, AttentionCall]:
    """Call the operations of the CPU's kernel in its order; return their result and the attention."""
    x, heads = layer.src, layer.num_heads
    B, T, width = x.shape
    normed = layer.norm_1(x) if layer.norm_first else x
    qkv = torch.matmul(normed, layer.qkv_weight.t())  # (B, T, 3 · width), without the bias
    scaled_q, k, v = transform_bias_rescale_qkv(qkv, layer.qkv_bias, heads)  # (B, H, T, D) each
    weights = torch.bmm(scaled_q.flatten(0, 1), k.flatten(0, 1).mT).view(B, heads, T, T)
    # lse is the score of a key minus the logarithm of its weight: of the largest weight, for its digits.
    if layer.mask is None:
        top = weights.amax(-1)  # (B, H, T)
        torch.softmax(weights, -1, out=weights)
        largest = weights.amax(-1)
    else:
        weights = masked_softmax(weights, layer.mask, 3, layer.mask_type)
        largest, key = weights.max(-1)
        top = torch.linalg.vecdot(scaled_q, k.gather(2, key[..., None].expand_as(k)))
    # The softmax of a row without a visible key is NaN.
    lse = (top - largest.log()).nan_to_num_(nan=-torch.inf)
    # In the memory of the scaled queries, which k and v hold on to.
    output = torch.bmm(weights.flatten(0, 1), v.flatten(0, 1), out=scaled_q.flatten(0, 1)).view_as(v)
    mixed = linear(output.transpose(1, 2).reshape(B, T, width), layer.proj_weight, layer.proj_bias)
    # T×T numbers for each head are not to be held while the feed-forward layers run.
    del weights
    # The kernel's own queries are divided by √D.
    q = (qkv[..., :width] + layer.qkv_bias[:width]).view(B, T, heads, -1).transpose(1, 2)
    call = AttentionCall(
        q,
        k,
        v,
        output,
        lse,
        _kernel_mask(layer.mask, layer.mask_type),
        (width // heads) ** -0.5,
        problem=NAN_OUTPUT if bool(largest.isnan().any()) else None,
    )
    return layer.after_attention(mixed.add_(x)), call


@cache
def _operations_agree(
    run: Callable[..., Tensor], dtype: torch.dtype, norm_first: bool, use_gelu: bool, mask_type: int | None
) -> bool:
    """Whether the operations give the bits of the kernel `run` in this version here, on a small layer."""
    # PyTorch's global generator is the user's.
    generator = torch.Generator("cpu").manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype, device="cpu")

    if mask_type not in (None, 0, 1, 2):
        return False
    shape = {0: (5, 5), 1: (2, 5), 2: (2, 2, 5, 5)}.get(-1 if mask_type is None else mask_type)
    layer = EncoderLayer(
        src=draw(2, 5, 8),
        embed_dim=8,
        num_heads=2,
        qkv_weight=draw(24, 8),
        qkv_bias=draw(24),
        proj_weight=draw(8, 8),
        proj_bias=draw(8),
        use_gelu=use_gelu,
        norm_first=norm_first,
        eps=1e-5,
        norm_weight_1=draw(8),
        norm_bias_1=draw(8),
        norm_weight_2=draw(8),
        norm_bias_2=draw(8),
        ffn_weight_1=draw(16, 8),
        ffn_bias_1=draw(16),
        ffn_weight_2=draw(8, 16),
        ffn_bias_2=draw(8),
        mask=None if shape is None else torch.arange(5, device="cpu").expand(shape) > 3,
        mask_type=mask_type,
    )
    return torch.equal(run(*layer), _run_operations(layer)[0])


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
