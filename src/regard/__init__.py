"""Regard: attention you can read, check and see, at any length.

Names are imported when they are first used, so that `import regard` and the command `regard` start at once.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from regard.support.imports import call_after_import, import_on_first_use
from regard.version import __version__ as __version__

if TYPE_CHECKING:  # what type checkers and editors see; a test holds it equal to what is imported below
    from regard.attention.attend import attend, which_backend
    from regard.attention.masks.base import Mask, full
    from regard.attention.masks.named_masks import (
        alibi,
        causal,
        causal_mask,
        chunks,
        documents,
        padding,
        prefix,
        rule,
        tensor_mask,
        window,
    )
    from regard.attention.steps import scaled_dot_product_attention
    from regard.auditor import Audit, audit
    from regard.checker import Report, check
    from regard.comparison import compare
    from regard.interventions import ablate, block, effect, evict, importance, intervene, patch
    from regard.maps import AttentionMap, attention_map
    from regard.monitor import Monitor
    from regard.recorder import Capture, capture, capture_size, certify, load
    from regard.show import plot

__all__ = [
    "AttentionMap",
    "Audit",
    "Capture",
    "Mask",
    "Monitor",
    "Report",
    "ablate",
    "alibi",
    "attend",
    "attention_map",
    "audit",
    "block",
    "capture",
    "capture_size",
    "causal",
    "causal_mask",
    "certify",
    "check",
    "chunks",
    "compare",
    "documents",
    "effect",
    "evict",
    "full",
    "importance",
    "intervene",
    "load",
    "padding",
    "patch",
    "plot",
    "prefix",
    "rule",
    "scaled_dot_product_attention",
    "tensor_mask",
    "which_backend",
    "window",
]

_MODULES = {
    "regard.attention.attend": "attend which_backend",
    "regard.attention.masks.base": "Mask full",
    "regard.attention.masks.named_masks": (
        "alibi causal causal_mask chunks documents padding prefix rule tensor_mask window"
    ),
    "regard.attention.steps": "scaled_dot_product_attention",
    "regard.auditor": "Audit audit",
    "regard.checker": "Report check",
    "regard.comparison": "compare",
    "regard.interventions": "ablate block effect evict importance intervene patch",
    "regard.maps": "AttentionMap attention_map",
    "regard.monitor": "Monitor",
    "regard.recorder": "Capture capture capture_size certify load",
    "regard.show": "plot",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}
_import_name = import_on_first_use(__name__, _HOME)


def __getattr__(name: str) -> object:
    """Import a public name, or a subpackage, when it is first used (PEP 562)."""
    is_part = name not in _HOME and not name.startswith("_") and find_spec(f"regard.{name}")
    return import_module(f"regard.{name}") if is_part else _import_name(name)


def __dir__() -> list[str]:
    from pkgutil import iter_modules  # here, since it takes some milliseconds

    return sorted({*globals(), *__all__, *(part.name for part in iter_modules(__path__))})


# `model.set_attn_implementation("regard")` works once both are imported, whichever comes first.
call_after_import(
    "transformers.modeling_utils",
    "regard.recorder.sources.transformers_library.transformers_attention",
    "register",
)
