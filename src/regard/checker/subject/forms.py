"""The forms in which code may want to be called: its layout, a context, the shape of its rotary tables.

They are tried one after another: the first in which the code is right, or at least runs, is kept.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from regard.checker.subject import vocabulary
from regard.checker.subject.construct import SIZES
from regard.checker.subject.subject import Subject
from regard.checker.subject.tables import table_forms


def forms(subject: Subject) -> Iterator[Subject]:
    """Yield the subject in every form in which code on sequences may be called, the most usual first."""
    names = tuple(subject.arguments[role] for role in ("cos", "sin", "rotary") if role in subject.arguments)
    if names and subject.rotary is None and not any(name in subject.extra for name in names):
        for tables in table_forms(names, _head_width(subject.module)):
            yield subject.replaced(tables=tables)
        return
    yield subject
    if subject.inputs == "x" and "context" in subject.arguments:
        context = subject.arguments["context"]
        extra = {name: value for name, value in subject.extra.items() if name != context}
        yield subject.replaced(
            inputs="context", positional=[*subject.positional, context], by_name=True, extra=extra
        )
    if subject.layout == "BTC":
        for layout in ("TC", "BCHW", "BCT", "BHWC"):
            yield subject.replaced(layout=layout)


def _head_width(module: nn.Module | None) -> int:
    """Return the width of a head: what the module says, or its width divided by its heads."""
    attributes = {} if module is None else vars(module)
    sizes = {vocabulary.size(name): int(value) for name, value in attributes.items() if type(value) is int}
    if "head_width" in sizes:
        return sizes["head_width"]
    return sizes.get("width", int(SIZES["width"])) // sizes.get("heads", int(SIZES["heads"]))
