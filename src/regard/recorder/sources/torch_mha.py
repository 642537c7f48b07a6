"""PyTorch's own attention as a source: `nn.MultiheadAttention`, and the encoders and decoders built from it.

The model's result keeps its bits. Where it calls `scaled_dot_product_attention`, that call is recorded (see
`sdpa`). In two cases the call cannot be seen: with `need_weights=True` PyTorch multiplies matrices inside one
function, and in inference whole layers run in one fused kernel (the "fast path"), which returns only its
final result. Then the attention is computed a second time from the same inputs and weights and carried on to
a result of the model, which is compared on sampled rows; a difference is recorded as a problem, and the layer
is not certified.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import gelu, layer_norm, linear

from regard.attention.attend import attend
from regard.attention.masks.base import Mask, full
from regard.attention.masks.tensor_masks import Documents, Padding
from regard.recorder.attention_call import AttentionCall, Call, UnreadableCall, dropout_problem
from regard.recorder.certificates.certificate import sampled_rows
from regard.recorder.layer import LayerId
from regard.recorder.sources import token_order
from regard.recorder.sources.call_listeners import (
    CallListener,
    Listening,
    current_listeners,
    listeners_to,
    notify,
)
from regard.recorder.sources.mask_tensors import as_rule
from regard.recorder.sources.structure_of_models.structure import calling_module, modules_of
from regard.support.override import SharedOverride

NAN_OUTPUT = "the model's own output is NaN, which PyTorch gives for rows without a visible key"


def layer_ids(model: nn.Module) -> dict[nn.MultiheadAttention, LayerId]:
    """Return the attention modules of a model with their layer ids."""
    stacks: dict[nn.Module, str] = {}
    modules = modules_of(model).values()
    for module in modules:
        if isinstance(module, nn.TransformerDecoderLayer):
            stacks |= {module.self_attn: "decoder", module.multihead_attn: "cross"}
    has_decoder = bool(stacks)
    for module in modules:
        if isinstance(module, nn.TransformerEncoderLayer):
            stacks[module.self_attn] = "encoder" if has_decoder else ""
    counts, ids = Counter[str](), {}
    for name, module in modules_of(model).items():
        if isinstance(module, nn.MultiheadAttention):
            stack = stacks.get(module, "")
            ids[module] = LayerId(counts[stack], name, stack)
            counts[stack] += 1
    return ids


_override = SharedOverride()


@contextmanager
def intercepted() -> Iterator[None]:
    """While any capture is open, the functions that compute PyTorch's attention are intercepted.

    They are replaced, and modules not hooked: PyTorch leaves its fast path if it finds a hook. The wrappers
    notify the listeners of their own context; without any they change nothing.
    """
    with _override.opened():
        _override.replace(functional, "multi_head_attention_forward", _with_weights)
        _override.replace(torch, "_native_multi_head_attention", _fused_attention)
        _override.replace(torch, "_transformer_encoder_layer_fwd", _fused_layer)
        yield


_signature = inspect.signature(functional.multi_head_attention_forward)


def _with_weights(run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `multi_head_attention_forward` for the case that it returns weights."""

    @functools.wraps(run)
    def observed(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        listeners = current_listeners()
        bound = _signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if not listeners or not bound.arguments["need_weights"]:
            return run(*args, **kwargs)  # type: ignore[no-any-return]
        if any(listener.is_editor for listener in listeners):
            return _edited_with_weights(run, bound, listeners)
        dropout = bound.arguments["dropout_p"] if bound.arguments["training"] else 0.0
        with Listening():
            result: tuple[Tensor, Tensor] = run(*args, **kwargs)
        # A second run without weights goes through `scaled_dot_product_attention`, which is heard. There
        # PyTorch would use the hint `is_causal` in place of the mask, which it does not with weights.
        bound.arguments |= {"need_weights": False, "is_causal": False, "training": False}
        calls: list[Call] = []
        # The second run is compared, and the model goes on with the first.
        with Listening(_collector(calls)), torch.no_grad():
            recomputed: Tensor = run(*bound.args, **bound.kwargs)[0]
        problem = dropout_problem(dropout) or _difference_problem(result[0].detach(), recomputed)
        for call in calls:
            notify(listeners, call if isinstance(call, UnreadableCall) else call._replace(problem=problem))
        return result

    return observed


def _collector(calls: list[Call], listeners: tuple[CallListener, ...] = ()) -> CallListener:
    """Return a listener that passes calls to other listeners and appends them to a list."""

    def collect(call: Call) -> Call:
        calls.append(notify(listeners, call))
        return calls[-1]

    return CallListener(collect, any(listener.is_editor for listener in listeners))


def _edited_with_weights(
    run: Callable[..., Any], bound: inspect.BoundArguments, listeners: tuple[CallListener, ...]
) -> tuple[Tensor, Tensor]:
    """Run `multi_head_attention_forward` under an edit: return its output and the edited weights."""
    average, batched = bound.arguments["average_attn_weights"], bound.arguments["query"].ndim == 3
    # As above: with weights PyTorch goes by the mask and not by the hint.
    bound.arguments |= {"need_weights": False, "is_causal": False}
    calls: list[Call] = []
    with Listening(_collector(calls, listeners)):
        output: Tensor = run(*bound.args, **bound.kwargs)[0]
    (call,) = calls
    if isinstance(call, UnreadableCall):
        raise RuntimeError(f"nn.MultiheadAttention cannot return its weights under an edit: {call.reason}")
    weights = call.attention_map().to_dense()  # (B, H, T, S)
    weights = weights.mean(1) if average else weights
    return output, weights if batched else weights.squeeze(0)


def _notify_unchanged(listeners: tuple[CallListener, ...], call: AttentionCall) -> None:
    """Pass on a call whose output is inside a fused kernel; a RuntimeError says so if an edit changes it."""
    heard = notify(listeners, call)
    if isinstance(heard, AttentionCall) and heard.used is not None:
        raise RuntimeError(
            "PyTorch ran this attention in one fused kernel, whose output cannot be edited: "
            "write torch.backends.mha.set_fastpath_enabled(False) before"
        )


def _fused_attention(run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the fast path of a single attention module."""

    @functools.wraps(run)
    def observed(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = run(*args, **kwargs)
        if listeners := current_listeners():
            # What is computed again here is not the model's.
            with token_order.Pause():
                _notify_unchanged(listeners, _native_attention(result[0], *args, **kwargs))
        return result

    return observed


def _fused_layer(run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the fast path of a whole encoder layer."""

    @functools.wraps(run)
    def observed(*args: Any, **kwargs: Any) -> Tensor:
        # The kernel of an encoder layer does not call its attention.
        layer = calling_module()
        listeners = listeners_to(getattr(layer, "self_attn", layer))
        if not listeners:
            return run(*args, **kwargs)  # type: ignore[no-any-return]
        # What is computed again here is not the model's, and cuts its tensors into heads.
        with token_order.Pause():
            result: Tensor = run(*args, **kwargs)
            call = _encoder_layer(result, EncoderLayer(*args, **kwargs))
            _notify_unchanged(listeners, call)
        return result

    return observed


def _native_attention(
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
    return call._replace(problem=_difference_problem(_select_rows(result, rows, is_token), mixed * is_token))


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


def _encoder_layer(result: Tensor, layer: EncoderLayer) -> AttentionCall:
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
    return call._replace(problem=_difference_problem(_select_rows(result, rows, is_token), recomputed))


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


def _difference_problem(result: Tensor, recomputed: Tensor) -> str | None:
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
