"""The forms in which code may want to be called: its layout, a context, the shape of its rotary tables.

They are tried one after another: the first in which the code is right, or at least runs, is kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from torch import nn

from regard.checker.subject import vocabulary
from regard.checker.subject.construction.construct import SIZES
from regard.checker.subject.mask_form import MaskForm
from regard.checker.subject.subject import Subject
from regard.checker.subject.tables import table_forms


def forms(subject: Subject) -> Iterator[Subject]:
    """Yield the subject in every form in which code on sequences may be called, the most usual first."""
    for form in with_open_masks(subject):
        yield from _table_forms(form)
    if subject.inputs == "x" and "context" in subject.arguments:
        context = subject.arguments["context"]
        extra = {name: value for name, value in subject.extra.items() if name != context}
        positional = [*subject.positional, context]
        yield subject.replaced(inputs="context", positional=positional, by_name=True, extra=extra)
    if subject.layout == "BTC":
        # Diffusion models attend over images (B, C, H, W), speech over signals (B, C, T), and window
        # attention of vision over (B, H, W, C).
        for layout in ("TC", "BCHW", "BCT", "BHWC"):
            yield subject.replaced(layout=layout)


def with_open_masks(subject: Subject) -> Iterator[Subject]:
    """Yield the subject as it is; if it needs a mask, also with one that hides nothing."""
    yield subject
    # None is what a required mask gets, so that another value must stand for one that is not passed.
    if subject.extra.get(subject.arguments.get("mask", ""), subject) is not None:
        return  # its mask is optional, or the caller passes one
    # The mask of TensorFlow's tutorial is 1 where it hides, that of The Annotated Transformer 0.
    kinds = (
        (subject.mask_form.kind,)
        if subject.mask_stated
        else ("look", "hide", "added", "zero-one", "one-zero")
    )
    for kind, rank in itertools.product(kinds, (2, 4, 3)):
        yield subject.replaced(mask_form=MaskForm(kind, rank), open_mask=True)


def is_certain(form: Subject) -> bool:
    """Return whether a form that runs is the one to call the code in, right or wrong."""
    return form.tables is None and not form.open_mask


def _table_forms(subject: Subject) -> Iterator[Subject]:
    """Yield the subject with its rotary tables in every usual shape; as it is if it takes none."""
    names = tuple(subject.arguments[role] for role in ("cos", "sin", "rotary") if role in subject.arguments)
    known = not names or subject.rotary is not None or any(name in subject.extra for name in names)
    if known:
        yield subject
    if known and (subject.rotary is None or any(name in subject.extra for name in names)):
        return
    # Transformers' tables are (1, T, D); gpt-oss takes half the width under the same name (5.22).
    for tables in table_forms(names, _head_width(subject.module)):
        yield subject.replaced(tables=tables, rotary=None)


def _head_width(module: nn.Module | None) -> int:
    """Return the width of a head: what the module says, or its width divided by its heads."""
    attributes = {} if module is None else vars(module)
    sizes = {vocabulary.size(name): int(value) for name, value in attributes.items() if type(value) is int}
    if "head_width" in sizes:
        return sizes["head_width"]
    return sizes.get("width", int(SIZES["width"])) // sizes.get("heads", int(SIZES["heads"]))
