"""Observes a running model: its attention calls go to a receiver, each in the forward pass it belongs to.

It attaches the sources to a model, detects where a forward pass begins and which tokens it reads, and
restores everything afterwards. How a source sees attention is in `sources`; what becomes of the
calls is decided by the receiver.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from regard.gpt import GPT
from regard.recorder.call_receiver import (
    CallReceiver,
    ModelArguments,
    PassTokens,
    open_receivers,
)
from regard.recorder.sources import listener, token_order
from regard.recorder.sources.adapters import attach_adapters
from regard.recorder.sources.compilation import uncompiled
from regard.recorder.sources.structure_of_models.model_parts import (
    KnownModel,
    check_recognised,
    look_at,
)
from regard.recorder.sources.structure_of_models.module_kinds import keeps_order
from regard.recorder.sources.structure_of_models.token_mixers import TokenMixers
from regard.recorder.sources.structure_of_models.vision_tower import find_pixels
from regard.support.override import MethodWrappers


@contextmanager
def observed(
    model: nn.Module,
    receiver: CallReceiver,
    adapters: Mapping[str, Callable[..., Any]] | None = None,
    mixers: TokenMixers | None = None,
) -> Iterator[None]:
    """Inside the block, the model's attention calls go to a receiver; then all is restored.

    If there are `adapters`, they alone describe the calls. `mixers` notes which modules run.
    """
    # All wrappers are activated together, since each block of its own costs every call of a module.
    known, wrappers = look_at(model) if mixers is None else mixers.model, MethodWrappers()
    if mixers is not None:
        mixers.watch(wrappers)
    receiver.known_code, receiver.modules = known.parts.known_code, frozenset(known.modules.values())
    with ExitStack() as undo:
        undo.enter_context(uncompiled(known, wrappers))
        undo.enter_context(open_receivers.added(receiver))
        if adapters is None:
            check_recognised(model, known.parts)
            undo.enter_context(listener.attached(known, receiver, wrappers))
        else:
            attach_adapters(model, receiver, adapters, wrappers)
        _mark_passes(known, receiver, wrappers)
        undo.enter_context(wrappers.active())
        yield


def _mark_passes(model: KnownModel, receiver: CallReceiver, wrappers: MethodWrappers) -> None:
    """Add wrappers by which a receiver knows where forward passes and generations begin and end."""
    modules, pretrained = model.modules, model.parts.pretrained
    for name in dict.fromkeys(("", *pretrained)):
        # Wrapped, not hooked: PyTorch's encoder layers leave their fast path if they find a hook.
        run = functools.partial(_run_pass, receiver, modules[name], "decoder" in name)
        wrappers.add(modules[name], "forward", run)
        if name in pretrained and hasattr(modules[name], "generate"):
            wrappers.add(modules[name], "generate", functools.partial(_run_generation, receiver))
    for module in modules.values():
        # Both a plain call and `generate` use it.
        if isinstance(module, GPT):
            wrappers.add(module, "states", functools.partial(_run_pass, receiver, module, False))


def _run_generation(receiver: CallReceiver, generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a model's `generate` so that the receiver knows how long the prompt is.

    The calls do not show it: a prompt may be read in chunks, and guesses of several tokens may follow it.
    """
    prompt = as_ids(args[0] if args else kwargs.get("inputs", kwargs.get("input_ids")))
    # Early exit calls it again for its guesses.
    if receiver.prompt is not None or prompt is None:
        return generate(*args, **kwargs)
    receiver.prompt = prompt.shape[1]
    try:
        return generate(*args, **kwargs)
    finally:
        receiver.prompt = None


def _run_pass(
    receiver: CallReceiver,
    model: nn.Module,
    in_decoder: bool,
    forward: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run a model's `forward` so that the receiver knows where a forward pass begins and ends."""
    arguments = ModelArguments(args, kwargs)
    tokens = _pass_tokens(model, arguments)
    with receiver.forward_pass(tokens, in_decoder), ExitStack() as undo:
        # A model inside of the model is given embeddings or a part of the text.
        if receiver.keeps_arguments and receiver.running == 1:
            receiver.arguments = arguments
        if keeps_order(model):
            undo.enter_context(token_order.Pause())
        elif receiver.watches_tokens and receiver.running == 1 and tokens.ids is not None:
            order = token_order.TokenOrder(arguments.ids, tokens.ids, tokens.others, model)
            receiver.order = undo.enter_context(order)
        return forward(*args, **kwargs)


def _pass_tokens(model: nn.Module, arguments: ModelArguments) -> PassTokens:
    """Find the token ids, the padding and the pixels among the arguments of a forward pass."""
    (args, kwargs), ids = arguments, arguments.ids
    mask = kwargs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.ndim == 2 and not mask.dtype.is_floating_point:
        # Copied, since the caller may write to it later.
        mask = mask.detach().cpu().to(torch.bool, copy=True)
    else:
        mask = None
    first = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
    return PassTokens(
        as_ids(ids),
        as_ids(kwargs.get("decoder_input_ids")),
        mask,
        find_pixels(args, kwargs),
        others=tuple(
            x for name, x in named_arguments(model, args, kwargs) if x is not ids and _is_text(name, x)
        ),
        cache=kwargs.get("past_key_values"),
        batch=() if first is None else tuple(first.shape[:2]),
    )


NO_TEXT = ("position", "type", "segment", "mask", "label", "target", "length")
"""Parts of the names of arguments that hold whole numbers for each token, but no text of its own."""


def _is_text(name: str, x: Any) -> bool:
    """Whether an argument may hold the token ids of a text."""
    return isinstance(x, Tensor) and _is_whole(x) and not any(part in name for part in NO_TEXT)


def named_arguments(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of a forward pass with their names, "" where the signature has none."""
    names = _parameter_names(inspect.unwrap(model.forward)) if args else ()
    yield from itertools.zip_longest(names[: len(args)], args, fillvalue="")
    yield from kwargs.items()


def _parameter_names(forward: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the parameters of a `forward`, without the module itself."""
    # A signature takes as long as a layer of a small model.
    code = getattr(forward, "__code__", None)
    names = tuple(inspect.signature(forward).parameters) if code is None else code.co_varnames
    names = names if code is None else names[: code.co_argcount]
    return names[1:] if names[:1] == ("self",) else names


def as_ids(x: Any) -> Tensor | None:
    """Return a copy of x if it is a tensor of token ids (B, T), else None."""
    return x.detach().cpu().clone() if _is_whole(x) else None  # the caller may write to the tensor later


def _is_whole(x: Any) -> bool:
    """Whether this is a tensor (B, T) of whole numbers."""
    return isinstance(x, Tensor) and x.ndim == 2 and x.dtype in (torch.int64, torch.int32)
