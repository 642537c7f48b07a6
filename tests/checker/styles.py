"""A style in which people write attention, as source text that is right, and mistakes made in it.

A wrong entry is the right text with a line or two replaced, so that what is wrong is there to be read. The
right text is an entry too: the same words must not be enough to be called wrong.
"""

from __future__ import annotations

import linecache
import sys
import types
from dataclasses import dataclass, field
from typing import Any

from tests.checker.corpus import Entry

_HEADER = """\
import math
from dataclasses import dataclass
import torch
import torch.nn.functional as F
from torch import nn
"""


@dataclass(frozen=True)
class Style:
    """One implementation as source text: the name of the style, the text, and the name of what it defines."""

    name: str
    source: str
    thing: str
    options: dict[str, Any] = field(default_factory=dict)

    def right(self, verdict: str = "right", why: str = "", **options: Any) -> Entry:
        """Return the entry for the text as it is."""
        thing = _load(f"{self.name}", self.source, self.thing)
        return Entry(self.name, thing, self.options | options, verdict, why=why)

    def wrong(self, name: str, *swaps: tuple[str, str], mistakes: tuple[str, ...], **options: Any) -> Entry:
        """Return an entry in which each swap's first text is replaced by its second."""
        source, full_name = self.source, f"{self.name}: {name}"
        for old, new in swaps:
            if old not in source:
                raise ValueError(f"{full_name}: the text has no {old!r}")
            source = source.replace(old, new)
        thing = _load(full_name, source, self.thing)
        return Entry(full_name, thing, self.options | options, "wrong", mistakes)


def _load(name: str, source: str, thing: str) -> Any:
    """Return what is called `thing` in a program, whose source can be read as if it were a file."""
    text, file = _HEADER + "\n\n" + source, f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    module = types.ModuleType(file)
    module.__file__ = file
    sys.modules[file] = module
    exec(compile(text, file, "exec", dont_inherit=True), module.__dict__)
    return getattr(module, thing)
