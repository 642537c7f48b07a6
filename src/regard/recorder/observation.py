"""Observes a running model: its attention calls go to a receiver, each in the forward pass it belongs to.

It chooses the sources that fit a model, attaches them, detects where a forward pass begins and which tokens
it reads, and restores everything afterwards. How a source sees attention is in `sources`; what becomes of the
calls is decided by the receiver.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from regard.override import MethodWrappers
from regard.recorder.receiver import CallReceiver, OpenReceiver, PassTokens, open_receivers
from regard.recorder.sources import adapters as adapter_source
from regard.recorder.sources import gpt as gpt_source
from regard.recorder.sources import linear_functions, listener, torch_mha
from regard.recorder.sources.compilation import uncompiled
from regard.recorder.sources.vision_tower import find_pixels

Attach = Callable[[nn.Module, CallReceiver], AbstractContextManager[None]]


@contextmanager
def observed(model: nn.Module, receiver: CallReceiver, sources: Sequence[Attach]) -> Iterator[None]:
    """Inside the block, `sources` pass the model's attention calls to a receiver; then all is restored."""
    wrappers = MethodWrappers()
    for name, module in model.named_modules():
        if module is model or listener.is_pretrained(module):
            # Wrapped, not hooked: PyTorch's encoder layers leave their fast path if they find a hook.
            wrappers.add(module, "forward", functools.partial(_run_pass, receiver, "decoder" in name))
    with ExitStack() as undo:
        undo.enter_context(uncompiled(model))
        undo.enter_context(open_receivers.added(OpenReceiver(receiver, frozenset(model.modules()))))
        for attach in sources:
            undo.enter_context(attach(model, receiver))
        undo.enter_context(wrappers.active())
        yield


def _run_pass(
    receiver: CallReceiver, in_decoder: bool, forward: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Run a model's `forward` so that the receiver knows where a forward pass begins and ends."""
    with receiver.forward_pass(_pass_tokens(args, kwargs), in_decoder):
        return forward(*args, **kwargs)


def _pass_tokens(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> PassTokens:
    """Find the token ids, the padding and the pixels among the arguments of a forward pass."""
    ids = args[0] if args else kwargs.get("input_ids", kwargs.get("ids"))
    mask = kwargs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.ndim == 2 and not mask.dtype.is_floating_point:
        mask = mask.detach().cpu().to(torch.bool, copy=True)
    else:
        mask = None
    return PassTokens(_as_ids(ids), _as_ids(kwargs.get("decoder_input_ids")), mask, find_pixels(args, kwargs))


def _as_ids(x: Any) -> Tensor | None:
    """Return a copy of x if it is a tensor of token ids (B, T), else None."""
    if isinstance(x, Tensor) and x.ndim == 2 and x.dtype in (torch.int64, torch.int32):
        return x.detach().cpu().clone()  # the caller may write to the tensor later
    return None


def choose_sources(
    model: nn.Module, adapters: Mapping[str, Callable[..., Any]] | None = None
) -> list[Attach]:
    """Return how to attach to each source that sees some of the model's attention.

    If there are `adapters`, they are the only source.
    """
    if adapters is not None:
        adapter_source.layer_ids(model, adapters)  # wrong names raise here, before anything runs
        return [functools.partial(adapter_source.attach, adapters=adapters)]
    every = (listener, torch_mha, gpt_source, linear_functions)
    attachments: list[Attach] = [source.attach for source in every if source.fits(model)]
    if not attachments:
        raise ValueError(
            f"model: expected one with attention that capture recognises (Transformers' interface, PyTorch's "
            "attention, regard.attend, a softmax between two matrix products), "
            f"got {type(model).__name__}: "
            "name its attention modules with adapters={name: adapter}"
        )
    return attachments


def attention_names(
    model: nn.Module, adapters: Mapping[str, Callable[..., Any]] | None = None
) -> frozenset[str]:
    """Return the names of the modules whose attention the sources see."""
    if adapters is not None:
        return frozenset(adapter_source.layer_ids(model, adapters))
    ids = (*torch_mha.layer_ids(model).values(), *gpt_source.layer_ids(model).values())
    return frozenset((*listener.attention_modules(model), *(layer_id.name for layer_id in ids)))
