"""Has compiled models run uncompiled inside a capture, since calls inside a compiled graph cannot be heard.

The three ways of `torch.compile` are served: `torch.compile(model)`, `model.compile()` and
`model.forward = torch.compile(model.forward)`. Only the context of the capture is affected.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from regard.recorder.sources.structure_of_models.model_parts import KnownModel
from regard.recorder.sources.structure_of_models.module_kinds import compiled_forward
from regard.support.override import ContextEntries, MethodWrappers, Replacement, SharedOverride
from regard.support.torch_internals import compiled_module_class

_captured: ContextEntries[frozenset[nn.Module]] = ContextEntries("captured_modules")
"""The modules of the models that are captured in a context."""
_override = SharedOverride()


@contextmanager
def uncompiled(model: KnownModel, wrappers: MethodWrappers) -> Iterator[None]:
    """Inside the block, and by wrappers that are added, a model and its modules run their original code.

    Only the context that activates the wrappers does so.
    """
    for name in model.parts.compiled:
        module = model.modules[name]
        if getattr(module, "_compiled_call_impl", None) is not None:
            wrappers.add(module, "_compiled_call_impl", _in_place_of(module._call_impl))
        # A compiled module has such a `forward` as well, and is replaced by its `__call__` below.
        if (original := compiled_forward(module)) is not None:
            wrappers.add(module, "forward", _in_place_of(original))
        if hasattr(module, "get_compiled_call"):
            wrappers.add(module, "get_compiled_call", functools.partial(_plain_call, module))
    kind = compiled_module_class()
    replacements = [] if kind is None else [Replacement(kind, "__call__", _original_call)]
    with _override.opened(replacements), _captured.added(frozenset(model.modules.values())):
        yield


def _in_place_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper that calls the original in place of what it wraps."""
    return lambda _, *args, **kwargs: original(*args, **kwargs)


def _plain_call(module: nn.Module, *_: Any, **__: Any) -> Callable[..., Any]:
    """Return a model's own call, where its compiled call is asked for."""
    return module.__call__


def _original_call(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the call of compiled modules: those of a captured model run their original."""

    @functools.wraps(call)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if any(self._orig_mod in modules for modules in _captured.get()):
            return self._orig_mod(*args, **kwargs)
        return call(self, *args, **kwargs)

    return run


def compiled_methods(model: nn.Module) -> Iterator[str]:
    """Yield the compiled methods and functions that the modules of a model hold, beside their `forward`."""
    for name, module in model.named_modules():
        for attribute, value in {**vars(type(module)), **vars(module)}.items():
            # A compiled `forward` runs uncompiled inside a capture; what else is compiled does not.
            if attribute != "forward" and hasattr(value, "_torchdynamo_orig_callable"):
                yield f"{name}.{attribute}" if name else attribute
