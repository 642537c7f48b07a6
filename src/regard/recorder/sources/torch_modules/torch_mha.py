"""PyTorch's own attention as a source: `nn.MultiheadAttention`, and the encoders and decoders built from it.

The model's result keeps its bits. Where it calls `scaled_dot_product_attention`, that call is recorded (see
`sdpa`). In two cases the call cannot be seen: with `need_weights=True` PyTorch multiplies matrices inside one
function, and in inference whole layers run in one fused kernel (the "fast path", see `torch_fused`). Then the
attention is computed a second time from the same inputs and weights and carried on to a result of the model,
which is compared on sampled rows; a difference is recorded as a problem, and the layer is not certified.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.recorder.attention_call import AttentionCall, Call, UnreadableCall, dropout_problem
from regard.recorder.layer import LayerId
from regard.recorder.sources import token_order
from regard.recorder.sources.call_listeners import (
    CallListener,
    Listening,
    current_listeners,
    listeners_to,
    notify,
)
from regard.recorder.sources.structure_of_models.structure import calling_module, modules_of
from regard.recorder.sources.torch_modules import torch_fused
from regard.recorder.sources.torch_modules.torch_fused import difference_problem
from regard.support.override import SharedOverride


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
        problem = dropout_problem(dropout) or difference_problem(result[0].detach(), recomputed)
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
                _notify_unchanged(listeners, torch_fused.attention(result[0], *args, **kwargs))
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
            call = torch_fused.encoder_layer(result, torch_fused.EncoderLayer(*args, **kwargs))
            _notify_unchanged(listeners, call)
        return result

    return observed
