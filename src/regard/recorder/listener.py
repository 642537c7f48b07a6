"""Listening to a model's attention while its own implementation computes it.

Two places are listened to: PyTorch's `scaled_dot_product_attention`, whoever calls it, and the functions of
Transformers' `AttentionInterface`. Nothing of the model is switched or replaced. This file knows which module
of the model a call belongs to; what a call says is read in `dot_product` and `transformers_interface`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

from torch import nn

from regard.recorder import dot_product
from regard.recorder.attention_call import AttentionCall, Unreadable
from regard.recorder.places import mentions, placed
from regard.recorder.recording import Place, Recording

ENTRANCES = ("scaled_dot_product_attention", "ALL_ATTENTION_FUNCTIONS")
"""What the code of a module names if it goes where we listen."""


def attentions(model: nn.Module) -> dict[str, nn.Module]:
    """The modules whose code goes where we listen."""
    return {
        name: module
        for name, module in model.named_modules()
        if not isinstance(module, nn.MultiheadAttention) and any(mentions(type(module), x) for x in ENTRANCES)
    }


def fits(model: nn.Module) -> bool:
    return bool(attentions(model)) or is_transformers(model)


def is_transformers(model: nn.Module) -> bool:
    """Whether this is a Transformers model, or has one inside."""
    return any(is_pretrained(module) for module in model.modules())


def is_pretrained(module: nn.Module) -> bool:
    return any(c.__module__ == "transformers.modeling_utils" for c in type(module).__mro__)


class Listener:
    """Hears the attention of one model's modules, for one recording."""

    def __init__(self, model: nn.Module, recording: Recording) -> None:
        self.recording = recording
        self.names = {module: name for name, module in model.named_modules()}
        self.places = placed(attentions(model))
        self.calls: Counter[nn.Module] = Counter()
        """How often each module has computed attention since it was called itself."""

    def hear(self, call: AttentionCall | Unreadable) -> None:
        """A call of `scaled_dot_product_attention` by some module."""
        module = calling_module()
        if module in self.names:
            self.take(module, call)

    def take(self, module: nn.Module, call: AttentionCall | Unreadable) -> None:
        """An attention of one of the model's modules."""
        # Some vision towers cut their tokens into images or windows, and call for each of them.
        part = self.calls[module] > 0
        self.calls[module] += 1
        self.recording.take(self.place(module), call, part=part)

    def place(self, module: nn.Module) -> Place:
        if module not in self.places:  # its code did not show that it would be heard
            number = next((int(part) for part in self.names[module].split(".") if part.isdigit()), 0)
            self.places[module] = Place(number, self.names[module])
            self.calls.pop(module, None)
        return self.places[module]

    def called(self, module: nn.Module, _: Any) -> None:
        """A module of the model is called."""
        self.calls.pop(module, None)


def calling_module() -> nn.Module:
    """The innermost module whose code is running, told from the frames of the call."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
        if names and names[0] in ("self", "module"):
            found = frame.f_locals.get(names[0])
            if isinstance(found, nn.Module):
                return found
        frame = frame.f_back
    return _NOBODY


_NOBODY = nn.Module()


@contextmanager
def attach(model: nn.Module, recording: Recording) -> Iterator[None]:
    """Listen to the model's attention; on leaving, nothing is left behind."""
    listener = Listener(model, recording)
    recording.expect(listener.places.values())
    with ExitStack() as undo:
        for module in listener.places:
            undo.callback(module.register_forward_pre_hook(listener.called).remove)
        undo.enter_context(dot_product.replaced(model))
        if is_transformers(model):
            from regard.recorder import transformers_interface

            if not listener.places:
                raise ValueError(no_way_in(model))
            undo.enter_context(transformers_interface.listened_to(listener))
        undo.enter_context(dot_product.listening(*dot_product.current_listeners(), listener.hear))
        yield


def no_way_in(model: nn.Module) -> str:
    """Why a Transformers model cannot be captured."""
    kinds = dict.fromkeys(
        type(module).__name__ for module in model.modules() if "Attention" in type(module).__name__
    )
    return (
        f"{type(model).__name__} cannot be captured: its attention ({', '.join(kinds) or 'none found'}) "
        "goes neither through Transformers' AttentionInterface nor through PyTorch's "
        "scaled_dot_product_attention; regard.capture(model, at={name: adapter}) serves any module"
    )
