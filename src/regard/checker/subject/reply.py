"""What a call of a subject gave: the output, what else came, or the error; and what was watched meanwhile."""

from __future__ import annotations

import dis
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from regard.checker.oracle.answer import Answer

_LIBRARIES = ("torch", "numpy", "einops", "triton")  # whose errors are about their own arguments
_DOT_T = torch.Tensor.T  # the property itself


class OutputShapeError(RuntimeError):
    """The code ran, and returned no tensor of the shape of an output."""


class CallMonitor(TorchFunctionMode):
    """Intercepts PyTorch calls while the code runs: it disables dropout and notices `.T` on a batch.

    `dropout` leaves dropout enabled. `used_dot_t` is set if `.T` was used on other than two dimensions.
    """

    def __init__(self, dropout: bool) -> None:
        super().__init__()
        self.dropout, self.used_dot_t = dropout, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        # PyTorch passes the __get__ of a property, which is bound to the property.
        if getattr(func, "__self__", None) is _DOT_T and args[0].ndim != 2:
            self.used_dot_t = True
        if self.dropout:
            pass
        elif name in ("dropout", "dropout_", "alpha_dropout", "feature_dropout"):
            if len(args) > 1:
                args = (args[0], 0.0, *args[2:])
            else:
                kwargs["p"] = 0.0
        elif name == "scaled_dot_product_attention" and (len(args) > 4 or "dropout_p" in kwargs):
            args, kwargs = (
                (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args,
                {**kwargs, "dropout_p": 0.0},
            )
            if len(args) > 4:
                kwargs.pop("dropout_p")
        return func(*args, **kwargs)


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
        place = self.error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        if place is None:
            return False
        frame = place.tb_frame
        module = str(frame.f_globals.get("__name__", ""))
        library = module.partition(".")[0] in _LIBRARIES or module.startswith("regard.checker.")
        # A raise and an assert end in this instruction, and an operation that fails does not.
        return not library and dis.opname[frame.f_code.co_code[place.tb_lasti]] == "RAISE_VARARGS"

    @property
    def error_line(self) -> str:
        """The error in one line."""
        text = (str(self.error).strip().splitlines() or [""])[0]
        return f"{type(self.error).__name__}: {text}"[:240]


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
