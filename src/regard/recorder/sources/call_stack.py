"""Finds the module whose code is running, in the frames of the call stack."""

from __future__ import annotations

import sys
from types import FrameType

from torch import nn

NO_MODULE = nn.Module()
"""Stands for the module of code that runs in none."""


def calling_module() -> nn.Module:
    """Return the innermost module whose code is running, or `NO_MODULE`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
        if names and names[0] in ("self", "module"):
            module = frame.f_locals.get(names[0])
            if isinstance(module, nn.Module):
                return module
        frame = frame.f_back
    return NO_MODULE
