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
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import layer_norm, linear

from regard.attention.attend import attend
from regard.attention.masks.base import Mask, full
from regard.attention.masks.tensor_masks import Documents, Padding
from regard.recorder.attention_call import AttentionCall, Call, UnreadableCall, dropout_problem
from regard.recorder.certificates.certificate import sampled_rows
from regard.recorder.sources import token_order
from regard.recorder.sources.call_listeners import (
    CallListener,
    Listening,
    collecting,
    current_listeners,
    listeners_to,
    notify,
)
from regard.recorder.sources.mask_tensors import as_rule
from regard.recorder.sources.structure_of_models.calling_modules import calling_module
from regard.recorder.sources.structure_of_models.model_parts import KnownModel
from regard.support.override import Replacement

NAN_OUTPUT = "the model's own output is NaN, which PyTorch gives for rows without a visible key"


def replacements(model: KnownModel) -> Iterator[Replacement]:
    """Yield the functions that compute PyTorch's attention.

    They are replaced, and modules not hooked: PyTorch leaves its fast path if it finds a hook.
    """
    yield Replacement(functional, "multi_head_attention_forward", _with_weights)
    yield Replacement(torch, "_native_multi_head_attention", _fused_attention)
    yield Replacement(torch, "_transformer_encoder_layer_fwd", _fused_layer)


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
        with Listening(collecting(calls)), torch.no_grad():
            recomputed: Tensor = run(*bound.args, **bound.kwargs)[0]
        problem = dropout_problem(dropout) or _difference_problem(result[0].detach(), recomputed)
        for call in calls:
            notify(listeners, call if isinstance(call, UnreadableCall) else call._replace(problem=problem))
        return result

    return observed


def _edited_with_weights(
    run: Callable[..., Any], bound: inspect.BoundArguments, listeners: tuple[CallListener, ...]
) -> tuple[Tensor, Tensor]:
    """Run `multi_head_attention_forward` under an edit: return its output and the edited weights."""
    average, batched = bound.arguments["average_attn_weights"], bound.arguments["query"].ndim == 3
    # As above: with weights PyTorch goes by the mask and not by the hint.
    bound.arguments |= {"need_weights": False, "is_causal": False}
    calls: list[Call] = []
    with Listening(collecting(calls, listeners)):
        output: Tensor = run(*bound.args, **bound.kwargs)[0]
    (call,) = calls
    if isinstance(call, UnreadableCall):
        raise RuntimeError(f"nn.MultiheadAttention cannot return its weights under an edit: {call.reason}")
    weights = call.attention_map().to_dense()  # (B, H, T, S)
    weights = weights.mean(1) if average else weights
    return output, weights if batched else weights.squeeze(0)


def _notify_unchanged(listeners: tuple[CallListener, ...], call: AttentionCall) -> None:
    """Pass on a call whose output is inside a fused kernel; a RuntimeError says so if an edit changes it."""
    if notify(listeners, call).edited is not None:
        raise RuntimeError(
            "PyTorch ran this attention in one fused kernel, whose output cannot be edited: "
            "write torch.backends.mha.set_fastpath_enabled(False) before"
        )


def _fused_attention(run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the fast path of a single attention module, `torch._native_multi_head_attention`."""

    @functools.wraps(run)
    def observed(*args: Any) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = run(*args)
        if listeners := current_listeners():
            # Its query, key and value are one tensor.
            x, *_, mask, _, _, mask_type = args
            # What is computed again here is not the model's.
            with token_order.Pause():
                again = _recompute(calling_module(), *_as_padded(x), _kernel_mask(mask, mask_type))
                _notify_unchanged(listeners, again.compared(result[0], again.mixed))
        return result

    return observed


def _fused_layer(run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the fast path of a whole encoder layer, `torch._transformer_encoder_layer_fwd`."""

    @functools.wraps(run)
    def observed(*args: Any) -> Tensor:
        # The kernel of an encoder layer does not call its attention.
        layer: Any = calling_module()
        listeners = listeners_to(getattr(layer, "self_attn", layer))
        if not listeners:
            return run(*args)  # type: ignore[no-any-return]
        # What is computed again here is not the model's, and cuts its tensors into heads.
        with token_order.Pause():
            result: Tensor = run(*args)
            x, lengths = _as_padded(args[0])
            *_, mask, mask_type = args
            before = _normalised(layer.norm1, x) if layer.norm_first else x
            again = _recompute(layer.self_attn, before, lengths, _kernel_mask(mask, mask_type))
            call = again.compared(result, _after_attention(layer, x[:, again.rows] + again.mixed))
            _notify_unchanged(listeners, call)
        return result

    return observed


def _after_attention(layer: Any, x: Tensor) -> Tensor:
    """Return an encoder layer's result for the sum x of its input and its attention."""
    x = x if layer.norm_first else _normalised(layer.norm1, x)
    inner = _normalised(layer.norm2, x) if layer.norm_first else x
    # By their weights: whoever watches these modules is to hear the model's own calls only.
    inner = layer.activation(linear(inner, layer.linear1.weight, layer.linear1.bias))
    x = x + linear(inner, layer.linear2.weight, layer.linear2.bias)
    return x if layer.norm_first else _normalised(layer.norm2, x)


def _normalised(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    return layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


class RecomputedAttention(NamedTuple):
    """An attention computed again, and the rows of it to compare with the kernel's result."""

    call: AttentionCall
    rows: Tensor  # the numbers of the rows to compare
    is_token: Tensor  # (B, rows, 1), 0 for rows that are padding in a nested tensor
    mixed: Tensor  # (B, rows, width), these rows after the output projection

    def compared(self, result: Tensor, recomputed: Tensor) -> AttentionCall:
        """Return the call, with a problem if a kernel's result (B, T, width) is not the recomputed rows."""
        padded = result.to_padded_tensor(0.0) if result.is_nested else result
        own, again = (x * self.is_token for x in (padded[:, self.rows], recomputed))
        return self.call._replace(problem=_difference_problem(own, again))


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


def _recompute(module: Any, x: Tensor, lengths: Tensor | None, mask: Mask) -> RecomputedAttention:
    """Compute the self-attention of a module to x (B, T, width) again, outside of the fused kernel."""
    B, T, width = x.shape
    D = width // module.num_heads
    projected = linear(x, module.in_proj_weight, module.in_proj_bias).chunk(3, -1)
    q, k, v = (part.view(B, T, -1, D).transpose(1, 2) for part in projected)
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
    heads = output[:, :, rows].transpose(1, 2).flatten(2)  # (B, rows, H · D)
    mixed = linear(heads, module.out_proj.weight, module.out_proj.bias)
    call = AttentionCall(q, k, v, output, lse, mask, D**-0.5)
    return RecomputedAttention(call, rows, is_token, mixed)


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
