"""The error that the checker raises, any error in one line, and where the author's code raised it."""

import functools
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

from regard.support.characters import escape


class CheckError(ValueError):
    """The code cannot be checked: one line that says why and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(escape(message))


def error_line(error: BaseException) -> str:
    """Return the kind of an error and the first line of its message, of a bounded length."""
    try:
        text = (str(error).strip().splitlines() or [""])[0]
    except Exception:  # the author's error has a message that raises another
        text = ""
    return f"{type(error).__name__}: {text}"[:240]


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
    # The forward pass, if it is a module.
    code = getattr(getattr(type(target), "forward", inspect.unwrap(target)), "__code__", None)
    return code if isinstance(code, CodeType) else None
