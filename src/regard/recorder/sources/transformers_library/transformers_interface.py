"""Intercepts the functions of Transformers' `AttentionInterface`, which compute a layer's attention.

The model's own function runs with its own arguments. If it calls PyTorch's `scaled_dot_product_attention`,
that call is what is recorded. Otherwise (eager attention, FlashAttention, FlexAttention, users' functions)
its arguments are interpreted by `function_arguments`, and the certificate compares that with the function's
result.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from regard.maps import AttentionMap
from regard.recorder.attention_call import AttentionCall, Call, UnreadableCall
from regard.recorder.certificates.certificate import sampled_rows
from regard.recorder.map_preparation import without_autocast, without_gradients
from regard.recorder.sources import sdpa
from regard.recorder.sources.call_listeners import (
    Listening,
    collecting,
    listeners_to,
    notify,
    open_listeners,
    read_or_explain,
    reading_mode,
)
from regard.recorder.sources.mask_tensors import Origin, origins
from regard.recorder.sources.sdpa_call import repeats_heads
from regard.recorder.sources.structure_of_models.model_parts import KnownModel
from regard.recorder.sources.transformers_library.function_arguments import attention_call, own_weights
from regard.recorder.sources.transformers_library.transformers_attention import register
from regard.recorder.sources.transformers_library.transformers_masks import describe_mask
from regard.support.lru import LRUCache
from regard.support.override import Replacement

# By id, which is the function's own as long as what wraps it is here.
_wrapped: LRUCache[Callable[..., Any]] = LRUCache(64)


def replacements(model: KnownModel) -> Iterator[Replacement]:
    """Yield the methods by which a model of Transformers gets its attention function and its masks."""
    if not model.parts.pretrained:
        return
    import transformers
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    # Transformers 5.0 and 5.1, which choose the function for eager attention without asking the interface.
    if not hasattr(AttentionInterface, "get_interface"):
        raise RuntimeError(
            f"capture: expected Transformers 5.2 or later, got {transformers.__version__}: "
            'pip install --upgrade "transformers>=5.2"'
        )
    register()
    yield Replacement(AttentionInterface, "get_interface", _return_observed)
    # Most models call `get_interface`; EdgeTAM and others index the interface.
    yield Replacement(AttentionInterface, "__getitem__", _return_observed)
    yield Replacement(AttentionMaskInterface, "__getitem__", _get_mask_function)


def _return_observed(get: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of the interface that returns a function, which every layer calls."""

    @functools.wraps(get)
    def get_observed(*args: Any, **kwargs: Any) -> Any:
        function = get(*args, **kwargs)
        # One of the two methods may return what the other has wrapped.
        if not open_listeners.get() or hasattr(function, "_regard_observed"):
            return function
        return _wrapped.get(id(function), lambda: _observed(function))

    return get_observed


def _get_mask_function(get: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(get)
    def getitem(self: Any, name: str) -> Any:
        make = get(self, name)

        @functools.wraps(make)
        def make_and_note(*args: Any, **kwargs: Any) -> Any:
            mask = make(*args, **kwargs)
            # A `RuleMask` describes itself. Transformers passes these arguments by name.
            if type(mask) is Tensor and not args:
                origins[mask] = functools.partial(_origin, **kwargs)
            return mask

        return make_and_note if open_listeners.get() else make

    return getitem


def _origin(**kwargs: Any) -> Origin:
    return describe_mask(**kwargs)[0]


def _observed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an attention function so that the listeners of the calling module receive its calls."""
    # A function that somebody has registered may have PyTorch's under any name.
    is_known = str(getattr(inspect.unwrap(function), "__module__", "")).startswith("transformers.")
    run = function if is_known else functools.partial(sdpa.run_in_mode, function)

    @functools.wraps(function)
    def observed(module: nn.Module, query: Tensor, *args: Any, **kwargs: Any) -> Any:
        listeners = listeners_to(module)
        if not listeners or torch.compiler.is_compiling():
            return function(module, query, *args, **kwargs)
        editors = [x for x in listeners if x.is_editor]
        inner: list[Call] = []
        overview = any(x.wants_overview for x in listeners)
        # Eager attention is read by its arguments here, and not followed as a module's own code.
        with Listening(collecting(inner, editors, overview, query.shape)), sdpa.without_mode():
            result = run(module, query, *args, **kwargs)
        # Regard's own attention returns the map itself, which is then that of the edited call.
        if inner and isinstance(result, tuple) and isinstance(result[-1], AttentionMap):
            result = _edited_result(result, inner[0])
        calls = inner
        if not inner:
            with reading_mode(listeners), without_autocast(query.device), Listening():
                call = read_or_explain(
                    attention_call, function, module, query, *args, **kwargs, result=result
                )
                calls = [notify(editors, call)]
                result = _edited_result(result, calls[0])
        # An edited output keeps its gradients above; what is recorded needs none.
        with without_gradients(), without_autocast(query.device), Listening(), sdpa.without_mode():
            for call in _checked_calls(inner, result, *args, **kwargs) if inner else calls:
                notify((x for x in listeners if not x.is_editor), call)
        return result

    observed._regard_observed = True  # type: ignore[attr-defined]
    return observed


def _edited_result(result: Any, call: Call) -> Any:
    """Return what a function returned, with the output and the weights that an edit has given."""
    if isinstance(call, UnreadableCall) or call.edited is None:
        return result
    if not isinstance(result, tuple):
        return call.edited.transpose(1, 2).reshape(result.shape)
    output, *others = result
    if others and isinstance(others[0], AttentionMap):
        others[0] = call.attention_map()
    elif others and isinstance(others[0], Tensor) and call.weights is not None:
        others[0] = call.weights
    return (call.edited.transpose(1, 2).reshape(output.shape), *others)


def _checked_calls(inner: list[Call], result: Any, key: Tensor, *_: Any, **__: Any) -> list[Call]:
    """Return the calls that a function made to PyTorch's, compared with what the function itself returned."""
    returned = result[0].detach() if isinstance(result, tuple) else result
    outputs = [call.used for call in inner if isinstance(call, AttentionCall)]
    problem = _change_problem(outputs, returned) if len(outputs) == len(inner) else None
    calls: list[Call] = []
    for call in inner:
        if isinstance(call, AttentionCall):
            weights = own_weights(result, (*call.q.shape[:3], call.k.shape[2])) if len(inner) == 1 else None
            call = _without_repeated_heads(call, key)
            if weights is not None or problem is not None:
                call = call._replace(weights=weights, problem=call.problem or problem)
        calls.append(call)
    return calls


def _change_problem(outputs: list[Tensor], returned: Any) -> str | None:
    """Return a problem if a function returned (B, T, H, E) other numbers than PyTorch's attention gave it."""
    parts = [x.transpose(1, 2) for x in outputs]  # (B, T, H, E) each
    # Nearly always: one call, whose output is returned without a copy. Numbers in the same memory need no
    # comparison, for which a GPU would be asked.
    if len(parts) == 1 and isinstance(returned, Tensor):
        (same,) = parts
        if returned.is_set_to(same if returned.ndim == 4 else same.flatten(2)):
            return None
    # Several calls compute it in parts of the tokens, or of the heads.
    for dim in (1, 2) if isinstance(returned, Tensor) else ():
        if len({x.shape[:dim] + x.shape[dim + 1 :] for x in parts}) == 1:
            whole = torch.cat(parts, dim)
            is_whole = returned.shape in (whole.shape, whole.flatten(2).shape)
            # Rows without a visible key may be NaN.
            if is_whole and torch.equal(
                returned.reshape(whole.shape).nan_to_num(), whole.to(returned.dtype).nan_to_num()
            ):
                return None
    return "its function changes what scaled_dot_product_attention returns"


def _without_repeated_heads(call: AttentionCall, key: Tensor) -> AttentionCall:
    """Return the call with the keys and values of grouped heads stored once, as the model passes them."""
    H, G = call.k.shape[1], key.shape[1] if key.ndim == 4 else 0
    # Transformers' sdpa repeats the keys of grouped heads (`repeat_kv`) where PyTorch's `enable_gqa` does not
    # serve.
    if not 0 < G < H or H % G:
        return call
    # A sample is enough: the certificate compares what comes of it.
    rows = sampled_rows(call.k.shape[2], 16, call.k.device)
    if not all(repeats_heads(x[:, :, rows].nan_to_num(), H // G) for x in (call.k, call.v)):
        return call
    return call._replace(k=call.k[:, :: H // G], v=call.v[:, :: H // G])
