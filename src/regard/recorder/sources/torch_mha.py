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
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.override import SharedOverride, override_attribute
from regard.recorder.attention_call import AttentionCall, Unreadable, dropout_problem
from regard.recorder.recording import LayerId, Recording
from regard.recorder.sources import sdpa, torch_fused
from regard.recorder.sources.sdpa import Hear, current_listeners, listening
from regard.recorder.sources.torch_fused import difference

_watchers: dict[nn.MultiheadAttention, list[Hear]] = {}
"""Who wants to hear of which attention, while captures are open."""


def fits(model: nn.Module) -> bool:
    """Whether the model has PyTorch's attention inside."""
    return any(isinstance(module, nn.MultiheadAttention) for module in model.modules())


def places(model: nn.Module) -> dict[nn.MultiheadAttention, LayerId]:
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
            found[module] = LayerId(counts[stack], name, stack)
            counts[stack] += 1
    return found


@contextmanager
def attach(model: nn.Module, recording: Recording) -> Iterator[None]:
    """Record a model's `MultiheadAttention`s; on leaving, everything is as it was."""
    known = places(model)
    recording.expect(known.values())
    with ExitStack() as undo:
        undo.enter_context(sdpa.replaced(model))
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
                undo.enter_context(override_attribute(module, "forward", _telling(module.forward, inner)))
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


_cover = SharedOverride()


@contextmanager
def _listening() -> Iterator[None]:
    """While any capture is open, the functions that PyTorch's attention runs through are covered.

    The covers tell whoever listens in their own context, and otherwise do nothing.
    """
    with _cover.opened():
        _cover.replace(functional, "multi_head_attention_forward", _with_weights)
        _cover.replace(torch, "_native_multi_head_attention", _fused_attention)
        _cover.replace(torch, "_transformer_encoder_layer_fwd", _fused_layer)
        yield


_arguments = inspect.signature(functional.multi_head_attention_forward)


def _with_weights(run: Callable[..., Any]) -> Callable[..., Any]:
    """All of an attention from its inputs to its output, and its weights if they are asked for."""

    @functools.wraps(run)
    def covered_run(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        listeners = current_listeners()
        given = _arguments.bind(*args, **kwargs)
        given.apply_defaults()
        if not listeners or not given.arguments["need_weights"]:
            return run(*args, **kwargs)  # type: ignore[no-any-return]
        dropout = given.arguments["dropout_p"] if given.arguments["training"] else 0.0
        with listening():
            result: tuple[Tensor, Tensor] = run(*args, **kwargs)
        # Once more, through `scaled_dot_product_attention`. The hint is taken for the mask only where no
        # weights are asked for.
        calls: list[AttentionCall | Unreadable] = []
        given.arguments |= {"need_weights": False, "is_causal": False, "training": False}
        with listening(calls.append), torch.no_grad():
            again: Tensor = run(*given.args, **given.kwargs)[0]
        problem = dropout_problem(dropout) or difference(result[0].detach(), again)
        for call in calls:
            _tell(listeners, call if isinstance(call, Unreadable) else call._replace(problem=problem))
        return result

    return covered_run


def _fused_attention(run: Callable[..., Any]) -> Callable[..., Any]:
    """The fast path of an attention on its own."""

    @functools.wraps(run)
    def covered_run(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = run(*args, **kwargs)
        if listeners := current_listeners():
            _tell(listeners, torch_fused.attention(result[0], *args, **kwargs))
        return result

    return covered_run


def _fused_layer(run: Callable[..., Any]) -> Callable[..., Any]:
    """The fast path of a whole encoder layer."""

    @functools.wraps(run)
    def covered_run(*args: Any, **kwargs: Any) -> Tensor:
        result: Tensor = run(*args, **kwargs)
        if listeners := current_listeners():
            _tell(listeners, torch_fused.encoder_layer(result, *args, **kwargs))
        return result

    return covered_run
