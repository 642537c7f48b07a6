"""Modules that a lower floor uses without knowing them; `regard/__init__.py` names them by their purpose."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_modules: dict[str, str] = {}


def provide(purpose: str, module: str) -> None:
    """Name the module that serves a purpose. It is imported when it is first needed."""
    _modules[purpose] = module


def provider(purpose: str) -> Any:
    """The module that serves a purpose."""
    return import_module(_modules[purpose])
