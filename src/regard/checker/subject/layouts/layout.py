"""A kernel's layout: how a question becomes the arguments of a call, and its result an answer."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.checker.oracle.answer import Answer
from regard.checker.oracle.question import Question


@dataclass(frozen=True)
class KernelLayout(ABC):
    """One way to call a kernel. `names` are its arguments by their meaning: {"lengths": "seq_lens"}."""

    names: dict[str, str] = field(default_factory=dict)
    ragged: ClassVar[bool] = False  # items may have lengths of their own
    makes_mask: ClassVar[bool] = False  # it returns a mask; the attention on it is the checker's own

    @property
    @abstractmethod
    def kind(self) -> str:
        """The `layout` of its questions."""

    @property
    def one_query(self) -> bool:
        """Whether every item has one query, as when a model generates."""
        return False

    @property
    def ragged_queries(self) -> bool:
        """Whether items may have different numbers of queries."""
        return self.ragged

    @property
    def square(self) -> bool:
        """Whether there must be as many keys as queries."""
        return False

    @property
    @abstractmethod
    def description(self) -> str:
        """The shapes of its inputs, for the report."""

    @abstractmethod
    def encode(self, question: Question) -> dict[str, Any]:
        """Return the arguments that hold the inputs, by meaning; those without a name are not passed."""

    @abstractmethod
    def decode(self, tensors: list[Tensor], question: Question) -> Answer:
        """Find the answer in the tensors that the kernel returned."""

    def run(
        self, target: Callable[..., Any], question: Question, options: dict[str, Any], device: str
    ) -> Answer:
        """Call the kernel on a question; `options` are keyword arguments that say what is wanted."""
        # Only a scale without a default has a name in this layout.
        usual = question.q.shape[-1] ** -0.5
        arguments = self.encode(question) | {"scale": usual if question.scale is None else question.scale}
        encoded = {self.names[m]: value for m, value in arguments.items() if m in self.names}
        keywords = {name: to_device(value, device) for name, value in (options | encoded).items()}
        result = target(**keywords)
        tensors = tensors_in(result)
        if not tensors and "out" in self.names:  # it wrote into the tensor that it was given
            tensors = [keywords[self.names["out"]]]
        if not tensors:
            raise RuntimeError(f"it returned {type(result).__name__}; expected a tensor or (output, lse)")
        return self.decode([to_device(t, "cpu") for t in tensors], question)


def to_device(value: Any, device: str) -> Any:
    """Move a tensor or a module to a device; other values, and tensors without data, stay as they are."""
    if isinstance(value, nn.Module):
        # `.to()` would leave plain tensors behind, such as the sinks of Transformers' interface.
        tensors = {name: x for name, x in vars(value).items() if isinstance(x, Tensor)}
        value.__dict__.update({name: x.to(device) for name, x in tensors.items()})
    return value.to(device) if isinstance(value, Tensor) and not value.is_meta else value


def tensors_in(result: Any) -> list[Tensor]:
    """Return the tensors of a result: the result itself, or those in a tuple, list or dict."""
    parts = result.values() if isinstance(result, dict) else result
    parts = parts if isinstance(result, list | tuple | dict) else [result]
    return [x for x in parts if isinstance(x, Tensor)]


def find_shape(tensors: list[Tensor], *shapes: tuple[int, ...]) -> Tensor:
    """Return the first floating-point tensor of one of these shapes; RuntimeError if there is none."""
    for t in tensors:
        if t.dtype.is_floating_point and tuple(t.shape) in shapes:
            return t
    shown = ", ".join(str(tuple(t.shape)) for t in tensors)
    raise RuntimeError(f"returned {shown}; expected an output {shapes[0]}")


def find_optional(tensors: list[Tensor], output: Tensor, *shapes: tuple[int, ...]) -> Tensor | None:
    """Return another tensor than the output of one of these shapes; None if there is none."""
    others = [t for t in tensors if t is not output and t.dtype.is_floating_point]
    return next((t for t in others if tuple(t.shape) in shapes), None)


def int32(numbers: Any) -> Tensor:
    """Return integers as kernels take them."""
    return torch.tensor(numbers, dtype=torch.int32)


def parameters_of(target: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function; none if they cannot be read."""
    try:
        return dict(inspect.signature(target).parameters)
    except (TypeError, ValueError):
        return {}


def is_required(parameter: inspect.Parameter) -> bool:
    """Return whether an argument has no default."""
    variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not variable
