"""PyTorch without its Python kernels for the device meta, which take a third of the time of its import."""

from __future__ import annotations

import sys
from importlib import import_module, metadata
from types import ModuleType

# PyTorch 2.13 imports it at the end of torch/__init__.py, and _decomp, _refs and _prims with it.
_META = "torch._meta_registrations"
# The versions in which nothing but tensors on "meta" was found to need it. Others are imported whole.
_TRIED = ("2.13.",)


def import_torch_quickly() -> None:
    """Import PyTorch, unless it is imported already, without what computes with shapes alone.

    Everything but tensors on the device meta works as ever; `complete_torch` adds what they need. A version
    of PyTorch with which this was not tried is imported as ever.
    """
    if "torch" in sys.modules or not metadata.version("torch").startswith(_TRIED):
        return
    sys.modules[_META] = ModuleType(_META)
    try:
        import_module("torch")
    finally:
        del sys.modules[_META]
    from regard.support.torch_internals import set_generator_metaclass

    set_generator_metaclass()


def complete_torch() -> None:
    """Import what `import_torch_quickly` has left out; nothing if it is there already."""
    import_module(_META)
