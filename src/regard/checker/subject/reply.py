"""What a call of a subject gave: the output or the error, where that was raised, and what it overwrote."""

from __future__ import annotations

import functools
import inspect
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.checker.errors import error_line
from regard.checker.oracle.question import Answer
from regard.support.torch_internals import TorchDispatchMode, tree_leaves

_LIBRARIES = ("torch", "numpy", "einops", "triton")  # whose errors are about their own arguments
_DOT_T = torch.Tensor.T  # the property itself


class OutputShapeError(RuntimeError):
    """The code ran, and returned no tensor of the shape of an output."""


class CallHook(TorchFunctionMode):
    """Hands every call of a function of PyTorch to `call(name, function, args, kwargs)`, which makes it."""

    def __init__(self, call: Callable[[str, Callable[..., Any], Any, dict[str, Any]], Any]) -> None:
        super().__init__()
        self.call = call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.call(getattr(func, "__name__", ""), func, args, dict(kwargs or {}))


class CallMonitor(CallHook):
    """Intercepts PyTorch calls while the code runs: it disables dropout and notices `.T` on a batch.

    `dropout` leaves dropout enabled. `used_dot_t` is set if `.T` was used on other than two dimensions.
    """

    def __init__(self, dropout: bool) -> None:
        super().__init__(self._call)
        self.dropout, self.used_dot_t = dropout, False

    def _call(self, name: str, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        # PyTorch passes the __get__ of a property, which is bound to the property.
        if getattr(func, "__self__", None) is _DOT_T and args[0].ndim != 2:
            self.used_dot_t = True
        if not self.dropout and name in ("dropout", "dropout_", "alpha_dropout", "feature_dropout"):
            args, kwargs = (args[0], 0.0, *args[2:]), {n: x for n, x in kwargs.items() if n != "p"}
        elif not self.dropout and name == "scaled_dot_product_attention":
            kwargs = dict(zip(("dropout_p", "is_causal"), args[4:], strict=False)) | kwargs
            args, kwargs = args[:4], kwargs | {"dropout_p": 0.0}
        return func(*args, **kwargs)


_ALLOCATES = re.compile(r"new_|(empty|zeros|ones|full|rand|randn)(_like)?$")  # no number is carried over


class FollowInputs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows numbers from some tensors to others through PyTorch's own operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._reached: dict[int, Tensor] = {}  # by the address of its storage; the tensor keeps it alive

    def add(self, *tensors: Tensor) -> None:
        """Follow the numbers of these tensors."""
        # A storage has no public identity: data_ptr() is 0 for all that are empty.
        self._reached.update({t.untyped_storage()._cdata: t for t in tensors})

    def reaches(self, tensor: Tensor) -> bool:
        """Return whether a tensor holds numbers that came from those that are followed."""
        return tensor.untyped_storage()._cdata in self._reached

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        # Only these private attributes give an operator's own name and schema.
        own = func.namespace in ("aten", "prims") and not _ALLOCATES.match(func._opname)
        if own and any(self.reaches(x) for x in inputs):
            changed = [args[0]] if func._schema.is_mutable and isinstance(args[0], Tensor) else []
            self.add(*(x for x in tree_leaves(result) if isinstance(x, Tensor)), *changed)
        return result


@dataclass(frozen=True)
class Reply:
    """The result of running a subject: an answer, or the error that it raised."""

    answer: Answer | None
    error: BaseException | None = None
    used_dot_t: bool = False  # .T was used on other than two dimensions
    overwritten: tuple[str, ...] = ()  # the inputs that hold other numbers after the call, if it was watched

    @property
    def is_refusal(self) -> bool:
        """Whether the code under test raised the error itself, with words: by a raise or an assert."""
        if self.error is None or not str(self.error).strip():
            return False
        last = traceback.extract_tb(self.error.__traceback__)[-1]
        frame = [frame for frame, _ in traceback.walk_tb(self.error.__traceback__)][-1]
        module = str(frame.f_globals.get("__name__", ""))
        library = module.partition(".")[0] in _LIBRARIES or module.startswith("regard.checker.")
        return not library and re.search(r"\b(raise|assert)\b", last.line or "") is not None

    @property
    def error_line(self) -> str:
        """The error in one line."""
        return "" if self.error is None else error_line(self.error)


class WatchedCall:
    """Code under test that notes which of its inputs it overwrites.

    `names` are the arguments to watch, those that are passed by position first and in their order.
    """

    def __init__(self, target: Callable[..., Any], names: list[str]) -> None:
        self.target, self.names = target, names
        self.overwritten: tuple[str, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Behind the tensors the names are of masks, which are passed by name.
        named = dict(zip(self.names, args, strict=False)) | kwargs
        # NumPy arrays are watched, too.
        watched = {name: x for name, x in named.items() if name in self.names and hasattr(x, "shape")}
        before = {name: torch.as_tensor(x).detach().clone() for name, x in watched.items()}
        try:
            return self.target(*args, **kwargs)
        finally:
            after = {name: torch.as_tensor(x).detach() for name, x in watched.items()}
            self.overwritten = tuple(name for name in after if not torch.equal(before[name], after[name]))


def error_place(error: BaseException | None, target: Callable[..., Any]) -> str:
    """Return " (kernel.py, line 31)", the last line of the author's file on the way to an error, or ""."""
    frames = _author_frames(error, target)
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def lines_reached(error: BaseException | None, target: Callable[..., Any]) -> int:
    """Return the line of the function under test, or of the forward pass, at which an error left it.

    0 if it did not even begin. Of several attempts to call the code, the one that reached the last line is
    the one whose error tells the author most.
    """
    code = _code(target)
    inside = [f.lineno or 0 for f in _author_frames(error, target) if code and f.name == code.co_name]
    return inside[0] if inside else 0


def _author_frames(error: BaseException | None, target: Callable[..., Any]) -> list[traceback.FrameSummary]:
    """Return the frames of an error and then of its causes that are in the file of the code under test."""
    code, seen = _code(target), list[BaseException]()
    # Triton's interpreter wraps a kernel's error. A chain of causes may be a circle.
    while error is not None and error not in seen:
        seen.append(error)
        error = error.__cause__
    frames = [frame for error in seen for frame in traceback.extract_tb(error.__traceback__)]
    return [frame for frame in frames if code is not None and frame.filename == code.co_filename]


def _code(target: Callable[..., Any]) -> CodeType | None:
    while isinstance(target, functools.partial):
        target = target.func
    function: Any = type(target).forward if isinstance(target, nn.Module) else inspect.unwrap(target)
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None
