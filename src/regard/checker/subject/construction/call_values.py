"""Arguments of a call that the caller states: values as they are, and tensors by their shape.

`"randn(B, T, C)"` stands for a tensor that is made anew for every question, since its sizes are the
question's. It is a string, so that it can be written in a shell too: `--call pe=randn(T,C)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.checker.errors import CheckError
from regard.checker.oracle.question import Question

LETTERS = "B, T, S, C, H and D"
_SHAPE = re.compile(r"(zeros|ones|randn|arange)\(([^()]*)\)")
_SIZE = re.compile(r"[BTSCHD0-9+*\- ]+")


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor, or the shape of one."""
    return isinstance(value, Tensor) or (
        isinstance(value, str) and _SHAPE.fullmatch(value.strip()) is not None
    )


def make_values(values: dict[str, Any], question: Question) -> dict[str, Any]:
    """Return arguments with a tensor in place of every shape."""
    return {name: make_value(name, value, question) for name, value in values.items()}


def make_value(name: str, value: Any, question: Question) -> Any:
    """Return the value of an argument for a question: a tensor if `value` is a shape, else `value` itself.

    B is the batch size, T and S are the numbers of queries and keys, C the width of a sequence; for split
    heads H is their number and D their width.
    """
    match = _SHAPE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        # The code may write into it.
        return value.clone() if isinstance(value, Tensor) else value
    split = question.q.ndim == 4
    letters = {"B": question.q.shape[0], "T": question.q.shape[-2], "S": question.k.shape[-2]}
    letters |= {"H": question.q.shape[1], "D": question.q.shape[-1]} if split else {"C": question.q.shape[-1]}
    sizes = [_size(name, value, text, letters) for text in match[2].split(",") if text.strip()]
    if match[1] == "arange":
        return torch.arange(*sizes)
    if match[1] == "randn":
        draw = torch.Generator().manual_seed(60)
        return torch.randn(sizes, generator=draw, dtype=torch.float64).to(question.dtype)
    make: Callable[..., Tensor] = torch.zeros if match[1] == "zeros" else torch.ones
    return make(sizes, dtype=question.dtype)


def _size(name: str, value: str, text: str, letters: dict[str, int]) -> int:
    """Return one size, such as `T` or `2*T-1`."""
    try:
        if _SIZE.fullmatch(text) is None:
            raise ValueError(text)
        return int(eval(text.strip(), {"__builtins__": {}}, letters))  # only letters, numbers, + − and ×
    except (ValueError, NameError, SyntaxError, TypeError):
        raise CheckError(
            f"--call {name}={value}: expected sizes of numbers and of {LETTERS}, joined by + - *, "
            f"got {text.strip()!r}; here {', '.join(f'{k} is {v}' for k, v in letters.items())}"
        ) from None
