"""Styles in which people write attention, as text that is right, and mistakes made in it: `programs/*.txt`.

A style is a program under `=== its name`, whose last class or function is checked. Below `--- mistakes` are
entries `name -> the mistake's name`, with the text that is replaced (`- `) and the new text (`+ `; `+` alone
removes a line). So what is wrong is there to be read, and the right text is an entry too: the same words must
not be enough to be called wrong.
"""

import re
from pathlib import Path

from tests.checker.corpus import Entry, Program

PROGRAMS = Path(__file__).parent / "programs"
HEADER = """\
import math
from dataclasses import dataclass
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


"""


def styles_of(text):
    """Return the entries of a file of styles."""
    for part in text.split("\n=== ")[1:]:
        name, _, program = part.partition("\n")
        source, _, mistakes = program.partition("--- mistakes\n")
        thing = re.findall(r"^(?:def|class) (\w+)", source, re.MULTILINE)[-1]
        yield Entry(name, Program(HEADER + source, thing))
        for found in re.finditer(r"^([^-+#\n].*) ->(.*)\n((?:[-+].*\n)+)", mistakes, re.MULTILINE):
            outcome, _, options = found[2].partition(" | ")
            verdict, _, why = outcome.strip().partition(": ")
            names = tuple(filter(None, verdict.split(", ")))
            yield Entry(
                f"{name}: {found[1]}",
                Program(HEADER + _swapped(source, found[3]), thing),
                dict(option.split("=") for option in options.split(", ") if option),
                *((verdict, (), why) if why else ("wrong", names)),
            )


def _swapped(source, swaps):
    """Return a program with each `-` text replaced by the `+` text below it."""
    for minus, plus in re.findall(r"((?:^- .*\n)+)((?:^\+.*\n)+)", swaps, re.MULTILINE):
        old, new = (re.sub("^. ?", "", text.rstrip("\n"), flags=re.MULTILINE) for text in (minus, plus))
        if old not in source:
            raise ValueError(f"the text has no {old!r}")
        line = re.compile(rf"^ *{re.escape(old)}\n", re.MULTILINE)
        source = line.sub("", source) if not new and line.search(source) else source.replace(old, new)
    return source


ENTRIES = [
    entry for file in sorted(PROGRAMS.glob("*.txt")) for entry in styles_of(file.read_text(encoding="utf-8"))
]
