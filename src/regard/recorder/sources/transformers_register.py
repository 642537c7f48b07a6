"""Registers Regard's attention with Transformers, for `model.set_attn_implementation("regard")`.

Importing regard must not import Transformers, which takes seconds. So the attention is registered at once if
Transformers' models are imported already, and otherwise as soon as they are.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

MODELS = "transformers.modeling_utils"


def register_when_imported() -> None:
    """Register now, or as soon as Transformers' models are imported."""
    if MODELS in sys.modules:
        _register()
    elif not any(isinstance(finder, ImportWatch) for finder in sys.meta_path):
        sys.meta_path.insert(0, ImportWatch())


class ImportWatch(MetaPathFinder):
    """Waits for one import, lets it happen as usual, and registers after it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != MODELS:
            return None
        sys.meta_path.remove(self)  # it is needed once, and the search below must not find it
        spec = find_spec(fullname)
        loader = None if spec is None else spec.loader
        if loader is not None:
            execute = loader.exec_module

            def execute_then_register(module: ModuleType) -> None:
                execute(module)
                _register()

            loader.exec_module = execute_then_register  # type: ignore[method-assign]
        return spec


def _register() -> None:
    from regard.recorder.sources.transformers_attention import register

    # A Transformers without the interface must not make an import fail; `capture` says what it needs.
    with contextlib.suppress(ImportError):
        register()
