"""Checks of single numbers and of argument names, shared by every part of the package.

Each check returns the value or raises an error that names the argument, what was expected and what it got.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from numbers import Real
from typing import ParamSpec, TypeVar

from regard.support.files import shorten

P = ParamSpec("P")
R = TypeVar("R")

PYTORCH_ARGUMENTS = {
    "attn_mask": "write mask=, which takes a boolean tensor, a float tensor or a mask such as regard.causal",
    "is_causal": "write mask=regard.causal, or mask=regard.causal.top_left to align it with the first key, "
    "as PyTorch does",
    "causal": "write mask=regard.causal",
    "dropout_p": "write dropout=, or leave it out where nothing is dropped",
    "enable_gqa": "leave it out: query head h reads key/value head h // (H // G) wherever k has fewer heads",
}
"""Arguments of PyTorch's attention and of other libraries that Regard has not: what to write instead."""


def check_whole_number(name: str, value: object, least: int = 1, most: int | None = None) -> int:
    """Return `value` as an int if it is a whole number from `least` to `most`, or raise ValueError.

    Integers of NumPy and PyTorch are whole numbers; booleans and floats are not.

    >>> check_whole_number("heads", 3)
    3
    >>> check_whole_number("heads", 2.5)
    Traceback (most recent call last):
    ValueError: heads: expected a whole number of at least 1, got 2.5
    """
    try:
        number = least - 1 if _is_boolean(value) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = least - 1
    if number < least or (most is not None and number > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name}: expected a whole number {limits}, got {shorten(value)}")
    return number


def _is_boolean(value: object) -> bool:
    """Whether it is a boolean of Python, NumPy or PyTorch: `operator.index` takes the first and the last."""
    # By the name of the dtype, so that NumPy need not be imported and PyTorch's dtype is told by the same
    # line.
    return isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")


def check_scale(scale: float | None) -> None:
    """Raise ValueError unless scores can be multiplied by `scale`."""
    if scale is not None and not (is_number(scale) and math.isfinite(scale)):
        raise ValueError(f"scale: expected a finite number or None for width ** -0.5, got {scale!r}")


def check_softcap(softcap: float | None) -> None:
    """Raise ValueError unless scores can be bounded by `softcap`."""
    if softcap is not None and not (is_number(softcap) and 0 < softcap < math.inf):
        raise ValueError(f"softcap: expected a number above 0, or None, got {softcap!r}")


def is_number(value: object) -> bool:
    """Whether it is a real number, NumPy's included; booleans are not."""
    return isinstance(value, Real) and not _is_boolean(value)


def check_positive(name: str, value: object) -> float:
    """Return `value` as a float if it is a finite number above 0, or raise ValueError."""
    try:
        number = float(value) if is_number(value) else math.nan  # type: ignore[arg-type]
    except OverflowError:  # a whole number beyond the range of floats
        number = math.inf
    if not 0 < number < math.inf:
        raise ValueError(f"{name}: expected a number above 0, got {shorten(value)}")
    return number


def answer_pytorch_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate `function` to answer arguments of PyTorch's attention with a TypeError that names its own."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name in PYTORCH_ARGUMENTS:
                raise unknown_argument(function, name)
        return function(*args, **kwargs)

    return wrapper


def unknown_argument(function: Callable[..., object], name: str) -> TypeError:
    """The error of a call of `function` with an argument that it has not; it answers PyTorch's by its own."""
    if name in PYTORCH_ARGUMENTS:
        return TypeError(f"{function.__name__}() has no argument {name!r}: {PYTORCH_ARGUMENTS[name]}")
    return TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}")
