"""The syntax trees of Regard's own files, parsed once for all tests that read them: it takes seconds."""

import ast
import gc
from functools import cache
from pathlib import Path

import regard

SOURCE = Path(regard.__file__).parent
LESSONS = SOURCE / "learn" / "lessons"  # programs of the learners: data, not modules
FILES = sorted(x for x in SOURCE.rglob("*.py") if not x.is_relative_to(LESSONS))


@cache
def trees():
    """The syntax tree of every file; a million objects that stay, among which no garbage is looked for."""
    gc.disable()
    try:
        return {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
    finally:
        gc.enable()
        gc.freeze()


@cache
def nodes():
    """Every node of every file: a walk takes as long as to parse."""
    return {path: list(ast.walk(tree)) for path, tree in trees().items()}
