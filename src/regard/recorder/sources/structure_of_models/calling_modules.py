"""The modules of a model whose code is running, as the frames of the thread show them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FrameType

from torch import nn

NO_MODULE = nn.Module()
"""Stands for the module of code that runs in none."""


def calling_modules() -> Iterator[nn.Module]:
    """Yield the modules whose code is running, the innermost first."""
    # `inspect.stack` would read source files at every call.
    frame: FrameType | None = sys._getframe(1)
    last = None
    while frame is not None:
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
        # Transformers' attention functions take their module as a first argument called `module`.
        if names and names[0] in ("self", "module"):
            module = frame.f_locals.get(names[0])
            # A module has several frames: `_wrapped_call_impl`, `_call_impl`, `forward`.
            if isinstance(module, nn.Module) and module is not last:
                last = module
                yield module
        frame = frame.f_back


def calling_module() -> nn.Module:
    """Return the innermost module whose code is running, or `NO_MODULE`."""
    return next(calling_modules(), NO_MODULE)


def is_running(code: CodeType) -> bool:
    """Whether the function that has this code was called and has not returned yet."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None
