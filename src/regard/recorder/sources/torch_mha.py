"""PyTorch's own attention as a source: `nn.MultiheadAttention`, and the encoders and decoders built from it.

The model's computation and its kernels are unchanged. Where it calls `scaled_dot_product_attention`, that
call is recorded (see `sdpa`). In two cases the call cannot be seen: with `need_weights=True` PyTorch
multiplies matrices inside one function, and in inference whole layers run in one fused kernel (the "fast
path"). Then the attention is computed a second time from the same inputs and weights and carried on to a
result of the model, which is compared on sampled rows; a difference is recorded as a problem, and the layer
is not certified.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.override import ContextEntries, MethodWrappers, SharedOverride
from regard.recorder.attention_call import AttentionCall, UnreadableCall, dropout_problem
from regard.recorder.layer import LayerId
from regard.recorder.recording import Recording
from regard.recorder.sources import sdpa, torch_fused
from regard.recorder.sources.sdpa import CallListener, current_listeners, listening
from regard.recorder.sources.torch_fused import difference_problem


def fits(model: nn.Module) -> bool:
    """Whether the model has PyTorch's attention inside."""
    return any(isinstance(module, nn.MultiheadAttention) for module in model.modules())


def layer_ids(model: nn.Module) -> dict[nn.MultiheadAttention, LayerId]:
    """Return the attention modules of a model with their layer ids."""
    stacks: dict[nn.Module, str] = {}
    for module in model.modules():
        if isinstance(module, nn.TransformerDecoderLayer):
            stacks |= {module.self_attn: "decoder", module.multihead_attn: "cross"}
    has_decoder = bool(stacks)
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            stacks[module.self_attn] = "encoder" if has_decoder else ""
    counts, ids = Counter[str](), {}
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            stack = stacks.get(module, "")
            ids[module] = LayerId(counts[stack], name, stack)
            counts[stack] += 1
    return ids


@contextmanager
def attach(model: nn.Module, recording: Recording) -> Iterator[None]:
    """Record the `MultiheadAttention` modules of a model; restore everything on leaving."""
    modules = layer_ids(model)
    recording.expect(modules.values())
    listeners = {
        module: functools.partial(recording.record, layer_id) for module, layer_id in modules.items()
    }
    wrappers = MethodWrappers()
    for module in model.modules():
        # The fused kernel of an encoder layer does not call its attention.
        inner = module.self_attn if isinstance(module, nn.TransformerEncoderLayer) else module
        if isinstance(inner, nn.MultiheadAttention):
            # Wrapped, not hooked: PyTorch leaves its fast path if it finds a hook.
            wrappers.add(module, "forward", functools.partial(_run_module, inner))
    with (
        sdpa.intercepted(model),
        _intercepted_functions(),
        _listeners.added(listeners),
        wrappers.active(),
    ):
        yield


_listeners: ContextEntries[Mapping[nn.MultiheadAttention, CallListener]] = ContextEntries("mha_listeners")
"""For each open capture of a context, the listener of each attention module."""


def _run_module(
    attention: nn.MultiheadAttention, forward: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Run a module's `forward` so that its calls go to the listeners of its attention, and to no others."""
    with listening(*(listeners[attention] for listeners in _listeners.get() if attention in listeners)):
        return forward(*args, **kwargs)


def _notify(listeners: tuple[CallListener, ...], call: AttentionCall | UnreadableCall) -> None:
    for listener in listeners:
        listener(call)


_override = SharedOverride()


@contextmanager
def _intercepted_functions() -> Iterator[None]:
    """While any capture is open, the functions that compute PyTorch's attention are intercepted.

    The wrappers notify the listeners of their own context; without any they change nothing.
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
        dropout = bound.arguments["dropout_p"] if bound.arguments["training"] else 0.0
        with listening():
            result: tuple[Tensor, Tensor] = run(*args, **kwargs)
        # A second run without weights goes through `scaled_dot_product_attention`, which is heard. There
        # PyTorch would use the hint `is_causal` in place of the mask, which it does not with weights.
        calls: list[AttentionCall | UnreadableCall] = []
        bound.arguments |= {"need_weights": False, "is_causal": False, "training": False}
        with listening(calls.append), torch.no_grad():
            recomputed: Tensor = run(*bound.args, **bound.kwargs)[0]
        problem = dropout_problem(dropout) or difference_problem(result[0].detach(), recomputed)
        for call in calls:
            _notify(listeners, call if isinstance(call, UnreadableCall) else call._replace(problem=problem))
        return result

    return observed


def _fused_attention(run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the fast path of a single attention module."""

    @functools.wraps(run)
    def observed(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = run(*args, **kwargs)
        if listeners := current_listeners():
            _notify(listeners, torch_fused.attention(result[0], *args, **kwargs))
        return result

    return observed


def _fused_layer(run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the fast path of a whole encoder layer."""

    @functools.wraps(run)
    def observed(*args: Any, **kwargs: Any) -> Tensor:
        result: Tensor = run(*args, **kwargs)
        if listeners := current_listeners():
            _notify(listeners, torch_fused.encoder_layer(result, *args, **kwargs))
        return result

    return observed
