"""Attention as people write it: implementations with the verdict that the check must give of each."""

import importlib
import pkgutil
import sys
from dataclasses import dataclass, field
from typing import Any

from regard.checker import check
from tests.checker.planting import load


@dataclass(frozen=True)
class Program:
    """Source text, and the name of what it defines."""

    source: str
    name: str


@dataclass(frozen=True)
class Entry:
    """One implementation: the options that check() is given, and what it must say.

    ``mistakes`` are names of which one must be diagnosed first, for what is wrong; ``why`` is a phrase of the
    sentence that says why nothing was decided, or what failed; ``failed`` are the names of all checks that
    fail, and ``named`` those of all mistakes, where that matters; ``says`` are phrases of single `lines`.
    """

    name: str
    thing: Any
    options: dict[str, Any] = field(default_factory=dict)
    verdict: str = "right"
    mistakes: tuple[str, ...] = ()
    why: str = ""
    failed: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    named: tuple[str, ...] | None = None

    def __str__(self):
        return self.name

    def load(self):
        """Return what is checked; a program is made into it."""
        return load(self.thing.source, self.thing.name) if isinstance(self.thing, Program) else self.thing

    def judge(self):
        """Check it, and hold the report against what is expected of it."""
        report = check(self.load(), **self.options)
        assert report.verdict == self.verdict, str(report)
        if self.mistakes:
            assert report.diagnoses[0].name in self.mistakes, str(report)
        if self.verdict == "right":  # a mistake of which it only warns
            assert all(diagnosis.warning for diagnosis in report.diagnoses), str(report)
        if self.named is not None:
            assert tuple(diagnosis.name for diagnosis in report.diagnoses) == self.named, str(report)
        assert self.why in "\n".join([report.summary, *map(str, report.failures)]), str(report)
        assert not self.failed or {x.name for x in report.failures} == set(self.failed), str(report)
        for phrase in self.says:
            assert any(phrase in line for line in lines(report)), f"{phrase}\n\n{report}"
        return report


def lines(report):
    """Return what a report holds: its headline, "passed output", "failed mask: …", "assumed …", "named …"."""
    return [
        report.summary,
        *(f"{x.status} {x}" for x in report.checks),
        *(f"assumed {text}" for text in report.assumptions),
        *(f"{'warned of' if x.warning else 'named'} {x.name}: {x.what} {x.fix}" for x in report.diagnoses),
        *map(str, report.layers),
        f"example: {report.example}" if report.example else "",
    ]


def name_of(thing):
    """Return the name of a function or a class, or of the class of an instance."""
    return getattr(thing, "__name__", type(thing).__name__)


def right(thing, *says, **options):
    """Return the entry of something right, under its own name."""
    return Entry(name_of(thing), thing, options, says=says)


def wrong(thing, *mistakes, why="", failed=(), says=(), named=None, **options):
    """Return the entry of something wrong, under its own name."""
    return Entry(name_of(thing), thing, options, "wrong", mistakes, why, failed, says, named)


def undecided(thing, why, *says, **options):
    """Return the entry of something of which nothing is decided, under its own name."""
    return Entry(name_of(thing), thing, options, "undecided", why=why, says=says)


def all_right(module, *others):
    """Return the entries of all that a module defines, which is right, but for what is called so or `_so`."""
    own = [x for x in vars(sys.modules[module]).values() if getattr(x, "__module__", "") == module]
    return [right(x) for x in own if x.__name__[0] != "_" and x.__name__ not in others]


def entries():
    """Return the entries of every module of this package with its name, in the order of the names."""
    modules = sorted(module.name for module in pkgutil.iter_modules(__path__))
    found = {name: importlib.import_module(f"{__name__}.{name}").ENTRIES for name in modules}
    return [(name, entry) for name in modules for entry in found[name]]
