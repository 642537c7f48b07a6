"""What the arguments of a target mean: which hold queries, keys and values, and which say what is wanted."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.checker.subject import vocabulary
from regard.checker.subject.call_tensors import arguments_of
from regard.checker.subject.kernel_recognition import recognize_layouts

ROLES = ("query", "key", "value")


@dataclass(frozen=True)
class CallSignature:
    """The parameters of a target, and the names of its arguments by their meaning: {"mask": "attn_mask"}."""

    signature: inspect.Signature
    names: dict[str, str]
    layout: str = ""  # "packed" for sequences with `cu_seqlens`, "" for plain tensors

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name; TypeError if they do not fit."""
        bound = self.signature.bind(*args, **kwargs)
        named = dict(bound.arguments)
        for name, parameter in self.signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                named |= named.pop(name, {})
        return named

    def without_self(self) -> CallSignature:
        """Return the signature of a bound method."""
        parameters = list(self.signature.parameters.values())
        return replace(self, signature=inspect.Signature(parameters[1:]))

    def value(self, arguments: dict[str, Any], meaning: str) -> Any:
        """Return the argument of a meaning, its default if it was not passed, None if there is none."""
        name = self.names.get(meaning, "")
        if name in arguments:
            return arguments[name]
        parameter = self.signature.parameters.get(name)
        return None if parameter is None or parameter.default is parameter.empty else parameter.default


def read_signature(target: Callable[..., Any]) -> CallSignature:
    """Return the signature of a function; ValueError says why it is none of attention."""
    owner = getattr(target, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
        # `apply` itself takes anything; the first argument of `forward` is the context.
        parameters = list(inspect.signature(owner.forward).parameters.values())[1:]
    else:
        parameters = list(arguments_of(target).values())
    signature = inspect.Signature(parameters)
    order = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if order[:1] == ["self"]:  # a method that is replaced on its class
        del order[0]
    names: dict[str, str] = {}
    for name in order:
        # Only here: the checker would pass a tensor as FlexAttention's block mask.
        meaning = "mask" if name == "block_mask" else vocabulary.argument(name)
        if meaning is not None:
            names.setdefault(meaning, name)
    if not names.keys() >= set(ROLES):
        if len(order) < 3:
            raise ValueError(f"expected a function of queries, keys and values, got ({', '.join(order)})")
        names = {m: n for m, n in names.items() if n not in order[:3]} | dict(zip(ROLES, order, strict=False))
    try:
        recognized = recognize_layouts(target, dict.fromkeys(order))
    except ValueError:
        recognized = None
    if recognized is None:
        return CallSignature(signature, names)
    layouts, options = recognized
    return CallSignature(signature, options | names | layouts[0].names, layouts[0].kind)
