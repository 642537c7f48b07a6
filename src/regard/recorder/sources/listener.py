"""Listening to a model's attention while its own implementation computes it.

Two places are listened to: PyTorch's `scaled_dot_product_attention`, whoever calls it, and the functions of
Transformers' `AttentionInterface`. Nothing of the model is switched or replaced. This file knows which module
of the model a call belongs to; what a call says is read in `dot_product` and `transformers_interface`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.masks.base import Mask
from regard.recorder.attention_call import AttentionCall, Unreadable
from regard.recorder.recording import LayerId, Recording
from regard.recorder.sources import sdpa
from regard.recorder.sources.layer_names import assign_layer_ids, class_uses_name

ENTRANCES = ("scaled_dot_product_attention", "ALL_ATTENTION_FUNCTIONS")
"""What the code of a module names if it goes where we listen."""


def attentions(model: nn.Module) -> dict[str, nn.Module]:
    """The modules whose code goes where we listen."""
    return {
        name: module
        for name, module in model.named_modules()
        if not isinstance(module, nn.MultiheadAttention)
        and any(class_uses_name(type(module), x) for x in ENTRANCES)
    }


def fits(model: nn.Module) -> bool:
    return bool(attentions(model)) or is_transformers(model)


def is_transformers(model: nn.Module) -> bool:
    """Whether this is a Transformers model, or has one inside."""
    return any(is_pretrained(module) for module in model.modules())


def is_pretrained(module: nn.Module) -> bool:
    return any(c.__module__ == "transformers.modeling_utils" for c in type(module).__mro__)


class Earlier(NamedTuple):
    """What is remembered of an attention until its module is called again."""

    q: Tensor
    k: Tensor
    mask: Mask
    scale: float
    versions: tuple[int, int] | None
    """How often q and k had been written to; None where PyTorch does not count that."""

    def same_weights(self, other: Earlier) -> bool:
        """Whether the weights are the same, whatever the values."""
        return (
            other.versions is not None
            and other.versions == _versions(other)
            and self.mask is other.mask
            and self.scale == other.scale
            and torch.equal(self.q, other.q)
            and torch.equal(self.k, other.k)
        )

    def beside(self, other: Earlier) -> bool:
        """Whether these are other tokens of the same sequence: queries and keys cut from one tensor each."""
        return _other_tokens(self.q, other.q) and _other_tokens(self.k, other.k)


def _versions(call: AttentionCall | Earlier) -> tuple[int, int] | None:
    if call.q.is_inference() or call.k.is_inference():
        return None
    return call.q._version, call.k._version


def _other_tokens(q: Tensor, other: Tensor) -> bool:
    """Whether two tensors (B, H, T, D) are other tokens of one tensor, and not other heads of it."""
    if q.untyped_storage().data_ptr() != other.untyped_storage().data_ptr() or q.stride() != other.stride():
        return False
    step = q.stride(2)
    apart, rest = divmod(abs(int(q.storage_offset()) - int(other.storage_offset())), max(step, 1))
    # What is larger than a step is a step to another head or text, and holds all the tokens there are.
    tokens = min((x // step for x in q.stride()[:2] if x > step), default=apart + 1) if step else 0
    return not rest and q.shape[2] <= apart < tokens


class Listener:
    """Hears the attention of one model's modules, for one recording."""

    def __init__(self, model: nn.Module, recording: Recording) -> None:
        self.recording = recording
        self.names = {module: name for name, module in model.named_modules()}
        self.places = assign_layer_ids(attentions(model))
        self.earlier: dict[nn.Module, list[Earlier]] = {}
        """The attentions that each module has computed since it was called itself."""

    def hear(self, call: AttentionCall | Unreadable) -> None:
        """A call of `scaled_dot_product_attention` by some module."""
        module = calling_module()
        if module in self.names:
            self.take(module, call)

    def take(self, module: nn.Module, call: AttentionCall | Unreadable) -> None:
        """An attention of one of the model's modules, which may compute several."""
        known = module in self.places  # and is told of its calls
        place, part = self.place(module), False
        earlier = self.earlier.setdefault(module, []) if known else []
        if isinstance(call, AttentionCall):
            own = Earlier(call.q, call.k, call.mask, call.scale, _versions(call))
            if call.problem is None and any(own.same_weights(other) for other in earlier):
                return  # the same weights once more, on other values
            # Some vision towers cut their tokens into images or windows, and call for each of them.
            part = bool(earlier) and own.beside(earlier[0])
            if earlier and not part:  # as differential attention does
                number = sum(not other.beside(earlier[0]) for other in earlier[1:]) + 2
                place = place._replace(stack=".".join(filter(None, (place.stack, f"attention{number}"))))
                place = place._replace(name=f"{place.name}#attention{number}")
            earlier.append(own)
        self.recording.take(place, call, part=part)

    def place(self, module: nn.Module) -> LayerId:
        if module not in self.places:  # its code did not show that it would be heard
            number = next((int(part) for part in self.names[module].split(".") if part.isdigit()), 0)
            return LayerId(number, self.names[module])
        return self.places[module]

    def forget(self, module: nn.Module, *_: Any) -> None:
        """A module is called, or has run: what it computed before is of no more use."""
        self.earlier.pop(module, None)


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
            undo.callback(module.register_forward_pre_hook(listener.forget).remove)
            undo.callback(module.register_forward_hook(listener.forget, always_call=True).remove)
        undo.enter_context(sdpa.replaced(model))
        if is_transformers(model):
            from regard.recorder.sources import transformers_interface

            if not listener.places:
                raise ValueError(no_way_in(model))
            undo.enter_context(transformers_interface.listened_to(listener))
        undo.enter_context(sdpa.listening(*sdpa.current_listeners(), listener.hear))
        yield


def no_way_in(model: nn.Module) -> str:
    """Why a Transformers model cannot be captured."""
    kinds = dict.fromkeys(
        type(module).__name__ for module in model.modules() if "Attention" in type(module).__name__
    )
    if not kinds:
        return f"{type(model).__name__} cannot be captured: it has no attention module that capture knows"
    return (
        f"{type(model).__name__} cannot be captured: its attention ({', '.join(kinds)}) "
        "goes neither through Transformers' AttentionInterface nor through PyTorch's "
        "scaled_dot_product_attention; regard.capture(model, at={name: adapter}) serves any softmax attention"
    )
