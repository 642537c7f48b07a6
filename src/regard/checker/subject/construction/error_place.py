"""Where the author's code raised an error, and how far it had come."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

from torch import nn


def error_place(error: BaseException | None, target: Callable[..., Any]) -> str:
    """Return " (kernel.py, line 31)", the last line of the author's file on the way to an error, or ""."""
    code = _code(target)
    lines = [frame.lineno for frame in _frames(error) if code and frame.filename == code.co_filename]
    return f" ({Path(code.co_filename).name}, line {lines[-1]})" if code and lines else ""


def lines_reached(error: BaseException | None, target: Callable[..., Any]) -> int:
    """Return the line of the function under test, or of the forward pass, at which an error left it.

    0 if it did not even begin. Of several attempts to call the code, the one that reached the last line is
    the one whose error tells the author most.
    """
    code = _code(target)
    inside = [
        frame.lineno
        for frame in _frames(error)
        if code and (frame.filename, frame.name) == (code.co_filename, code.co_name)
    ]
    return inside[0] or 0 if inside else 0


def _frames(error: BaseException | None) -> list[traceback.FrameSummary]:
    """Return the frames of an error and then of its causes: Triton's interpreter wraps a kernel's error."""
    frames: list[traceback.FrameSummary] = []
    seen: set[int] = set()
    # A chain of causes may be a circle.
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        frames += traceback.extract_tb(error.__traceback__)
        error = error.__cause__
    return frames


def _code(target: Callable[..., Any]) -> CodeType | None:
    while isinstance(target, functools.partial):
        target = target.func
    function: Any = type(target).forward if isinstance(target, nn.Module) else inspect.unwrap(target)
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None
