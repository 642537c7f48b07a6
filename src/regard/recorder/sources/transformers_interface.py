"""Listening to the functions of Transformers' `AttentionInterface`, which compute a layer's attention.

The model's own function runs, with the arguments that it was given. Where it calls PyTorch's
`scaled_dot_product_attention`, that call says what was computed. Elsewhere (eager attention, FlashAttention,
FlexAttention, functions of users) the arguments are read as `function_arguments` understands them, and the
certificate holds the reading against what the function gave.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from regard.override import SharedOverride
from regard.recorder.attention_call import AttentionCall, Unreadable
from regard.recorder.certificate import sampled_rows
from regard.recorder.sources import sdpa
from regard.recorder.sources.function_arguments import described, own_weights
from regard.recorder.sources.listener import Listener, calling_module
from regard.recorder.sources.mask_recognition import origins
from regard.recorder.sources.sdpa import readable
from regard.recorder.sources.transformers_attention import register
from regard.recorder.sources.transformers_masks import mask_origin

_listeners: ContextVar[tuple[Listener, ...]] = ContextVar("interface_listeners", default=())
_cover = SharedOverride()


@contextmanager
def listened_to(listener: Listener) -> Iterator[None]:
    """Inside the block, a listener hears what this context asks of the interface."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    register()
    with _cover.opened():
        _cover.replace(AttentionInterface, "get_interface", _get_interface)
        _cover.replace(AttentionInterface, "__getitem__", _getitem)
        _cover.replace(AttentionMaskInterface, "__getitem__", _get_mask_function)
        _listeners.set((*_listeners.get(), listener))
        try:
            yield
        finally:
            _listeners.set(tuple(x for x in _listeners.get() if x is not listener))


def _get_interface(get: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(get)
    def get_interface(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _heard(get(self, *args, **kwargs))

    return get_interface


def _getitem(get: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(get)
    def getitem(self: Any, name: str) -> Any:
        return _heard(get(self, name))

    return getitem


def _get_mask_function(get: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(get)
    def getitem(self: Any, name: str) -> Any:
        make = get(self, name)

        @functools.wraps(make)
        def making(*args: Any, **kwargs: Any) -> Any:
            mask = make(*args, **kwargs)
            if type(mask) is Tensor and not args:
                origins[mask] = functools.partial(mask_origin, **kwargs)
            return mask

        return making if _listeners.get() else make

    return getitem


def _heard(function: Callable[..., Any]) -> Callable[..., Any]:
    """An attention function, heard by those who listen to the module that calls it."""
    if not _listeners.get() or hasattr(function, "_regard_heard"):
        return function

    if (file := sys.modules.get(getattr(inspect.unwrap(function), "__module__", ""))) is not None:
        sdpa.replace_in(file)

    @functools.wraps(function)
    def heard(module: nn.Module, query: Tensor, *args: Any, **kwargs: Any) -> Any:
        listeners = _listeners.get()
        if not any(module in listener.names for listener in listeners):
            module_of_call = calling_module()
        else:
            module_of_call = module
        listeners = tuple(x for x in listeners if module_of_call in x.names)
        if not listeners or torch.compiler.is_compiling():
            return function(module, query, *args, **kwargs)
        inner: list[AttentionCall | Unreadable] = []
        with sdpa.listening(inner.append):
            result = function(module, query, *args, **kwargs)
        with torch.no_grad(), torch.autocast(query.device.type, enabled=False), sdpa.listening():
            if inner:
                calls = _whole(inner, result, *args, **kwargs)
            else:
                calls = [readable(described, function, module, query, *args, **kwargs, result=result)]
            for listener in listeners:
                for call in calls:
                    listener.take(module_of_call, call)
        return result

    heard._regard_heard = True  # type: ignore[attr-defined]
    return heard


def _whole(
    inner: list[AttentionCall | Unreadable], result: Any, key: Tensor, value: Tensor, *_: Any, **__: Any
) -> list[AttentionCall | Unreadable]:
    """The calls that a function made of PyTorch's, held against what the function itself gave."""
    given = result[0].detach() if isinstance(result, tuple) else result
    read = [call for call in inner if isinstance(call, AttentionCall)]
    problem = _changed_after([call.output for call in read], given) if len(read) == len(inner) else None
    calls: list[AttentionCall | Unreadable] = []
    for call in inner:
        if isinstance(call, AttentionCall):
            own = own_weights(result, (*call.q.shape[:3], call.k.shape[2])) if len(inner) == 1 else None
            call = _unrepeated(call, key.detach(), value.detach())
            call = call._replace(weights=own, problem=call.problem or problem)
        calls.append(call)
    return calls


def _changed_after(outputs: list[Tensor], given: Any) -> str | None:
    """What is wrong if a function gives (B, T, H, E) something else than PyTorch's attention gave it."""
    # One call gives it all; several give it in stretches of tokens, or of heads.
    for dim in (1,) if len(outputs) == 1 else (1, 2):
        if all(x.shape[:1] == outputs[0].shape[:1] for x in outputs):
            whole = _joined([x.transpose(1, 2) for x in outputs], dim)
            if (
                isinstance(given, Tensor)
                and whole is not None
                and given.shape in (whole.shape, whole.flatten(2).shape)
                and torch.equal(given.reshape(whole.shape).nan_to_num(), whole.to(given.dtype).nan_to_num())
            ):
                return None
    return "its function changes what scaled_dot_product_attention gives"


def _joined(outputs: list[Tensor], dim: int) -> Tensor | None:
    others = {x.shape[:dim] + x.shape[dim + 1 :] for x in outputs}
    return torch.cat(outputs, dim) if len(others) == 1 else None


def _unrepeated(call: AttentionCall, key: Tensor, value: Tensor) -> AttentionCall:
    """The same call with the keys and values of grouped heads held once, as the model holds them."""
    H, G, keys = call.k.shape[1], key.shape[1] if key.ndim == 4 else 0, call.k.shape[2]
    if not 0 < G < H or H % G or len(key) != len(call.k) or key.shape[2] < keys:
        return call
    k, v = key[:, :, :keys], value[:, :, :keys]
    if k.dtype != call.k.dtype:  # autocast
        k, v = k.to(call.k.dtype), v.to(call.v.dtype)
    rows = sampled_rows(keys, 16).to(k.device)
    for whole, once in ((call.k, k), (call.v, v)):
        repeated = once[:, :, rows].repeat_interleave(H // G, dim=1)
        if repeated.shape != whole[:, :, rows].shape or not torch.equal(
            repeated.nan_to_num(), whole[:, :, rows].nan_to_num()
        ):
            return call
    return call._replace(k=k, v=v)
