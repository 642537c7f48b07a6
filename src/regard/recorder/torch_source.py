"""PyTorch's own attention as a source: `nn.MultiheadAttention`, and the encoders and decoders built of it.

The model's computation is left alone, kernels and all. Where it goes through `scaled_dot_product_attention`,
what goes in and comes out there is what is recorded. In two cases nothing can be seen from outside: when
weights are asked for, PyTorch multiplies matrices inside one function, and in inference whole layers run in
one fused kernel ("fast path"). Then the attention is computed once more beside it, from the same inputs and
weights, and carried on to where the model's own result can be compared, on sampled rows; a difference is the
layer's problem in its certificate.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.covering import covered
from regard.recorder import dot_product, torch_fused
from regard.recorder.attention_call import AttentionCall, Unreadable, dropout_problem
from regard.recorder.dot_product import Hear, current_listeners, listening
from regard.recorder.recording import Place, Recording
from regard.recorder.torch_fused import difference

_watchers: dict[nn.MultiheadAttention, list[Hear]] = {}
"""Who wants to hear of which attention, while captures are open."""


def fits(model: nn.Module) -> bool:
    """Whether the model has PyTorch's attention inside."""
    return any(isinstance(module, nn.MultiheadAttention) for module in model.modules())


def places(model: nn.Module) -> dict[nn.MultiheadAttention, Place]:
    """The attentions of a model and where they stand."""
    stacks: dict[nn.Module, str] = {}
    for module in model.modules():
        if isinstance(module, nn.TransformerDecoderLayer):
            stacks |= {module.self_attn: "decoder", module.multihead_attn: "cross"}
    both = bool(stacks)
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            stacks[module.self_attn] = "encoder" if both else ""
    counts, found = Counter[str](), {}
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            stack = stacks.get(module, "")
            found[module] = Place(counts[stack], name, stack)
            counts[stack] += 1
    return found


@contextmanager
def attach(model: nn.Module, recording: Recording) -> Iterator[None]:
    """Record a model's `MultiheadAttention`s; on leaving, everything is as it was."""
    known = places(model)
    recording.expect(known.values())
    with ExitStack() as undo:
        undo.enter_context(dot_product.replaced(model))
        undo.enter_context(_listening())
        for attention, place in known.items():
            hear = functools.partial(recording.take, place)
            _watchers.setdefault(attention, []).append(hear)
            undo.callback(_unwatched, attention, hear)
        for module in model.modules():
            # The fused kernel of an encoder layer does not call its attention.
            inner = module.self_attn if isinstance(module, nn.TransformerEncoderLayer) else module
            if isinstance(inner, nn.MultiheadAttention):
                # Covered, not hooked: PyTorch leaves its fast path where it finds a hook.
                undo.enter_context(covered(module, "forward", _telling(module.forward, inner)))
        yield


def _unwatched(attention: nn.MultiheadAttention, hear: Hear) -> None:
    _watchers[attention].remove(hear)
    if not _watchers[attention]:
        del _watchers[attention]


def _telling(forward: Callable[..., Any], attention: nn.MultiheadAttention) -> Callable[..., Any]:
    """A module's `forward`, during which those who watch its attention are told of it."""

    @functools.wraps(forward)
    def watched(*args: Any, **kwargs: Any) -> Any:
        with listening(*_watchers.get(attention, ())):
            return forward(*args, **kwargs)

    return watched


def _tell(listeners: tuple[Hear, ...], call: AttentionCall | Unreadable) -> None:
    for hear in listeners:
        hear(call)


_lock, _open, _originals = threading.Lock(), 0, dict[str, Callable[..., Any]]()


@contextmanager
def _listening() -> Iterator[None]:
    """While any capture is open, the functions that PyTorch's attention runs through are covered.

    The covers tell whoever watches the module that runs, in its own thread, and otherwise do nothing.
    """
    global _open
    covers = {
        (functional, "multi_head_attention_forward"): _with_weights,
        (torch, "_native_multi_head_attention"): _fused_attention,
        (torch, "_transformer_encoder_layer_fwd"): _fused_layer,
    }
    with _lock:
        if not _open:
            for (where, name), cover in covers.items():
                _originals[name] = getattr(where, name)
                setattr(where, name, cover)
        _open += 1
    try:
        yield
    finally:
        with _lock:
            _open -= 1
            if not _open:
                for where, name in covers:
                    setattr(where, name, _originals.pop(name))


def _original(name: str) -> Callable[..., Any]:
    where = torch if name.startswith("_") else functional
    return _originals.get(name) or getattr(where, name)


_arguments = inspect.signature(functional.multi_head_attention_forward)


def _with_weights(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    """All of an attention from its inputs to its output, and its weights if they are asked for."""
    run, listeners = _original("multi_head_attention_forward"), current_listeners()
    given = _arguments.bind(*args, **kwargs)
    given.apply_defaults()
    if not listeners or not given.arguments["need_weights"]:
        return run(*args, **kwargs)  # type: ignore[no-any-return]
    dropout = given.arguments["dropout_p"] if given.arguments["training"] else 0.0
    with listening():
        result: tuple[Tensor, Tensor] = run(*args, **kwargs)
    # Once more, through `scaled_dot_product_attention`. The hint is taken for the mask only where no weights
    # are asked for.
    calls: list[AttentionCall | Unreadable] = []
    given.arguments |= {"need_weights": False, "is_causal": False, "training": False}
    with listening(calls.append), torch.no_grad():
        again: Tensor = run(*given.args, **given.kwargs)[0]
    problem = dropout_problem(dropout) or difference(result[0].detach(), again)
    for call in calls:
        _tell(listeners, call if isinstance(call, Unreadable) else call._replace(problem=problem))
    return result


def _fused_attention(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """The fast path of an attention on its own."""
    listeners = current_listeners()
    result: tuple[Tensor, Tensor] = _original("_native_multi_head_attention")(*args, **kwargs)
    if listeners:
        _tell(listeners, torch_fused.attention(result[0], *args, **kwargs))
    return result


def _fused_layer(*args: Any, **kwargs: Any) -> Tensor:
    """The fast path of a whole encoder layer."""
    listeners = current_listeners()
    result: Tensor = _original("_transformer_encoder_layer_fwd")(*args, **kwargs)
    if listeners:
        _tell(listeners, torch_fused.encoder_layer(result, *args, **kwargs))
    return result
