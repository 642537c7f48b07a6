"""Exercises: a solution with the learner's lines left out, and what of it is still to be written.

A statement of a solution whose line ends in `#: what it is, (shape)` is for the learner to write. In the
exercise it is `name = ...  # what it is, (shape)`.
"""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

MARK = re.compile(r"\s*#: (.*)$")


class Blank(NamedTuple):
    """A line that is still to be written: its number, and what it should be."""

    line: int
    text: str


def make_exercise(solution: str) -> str:
    """Return a solution with the marked statements left out.

    >>> print(make_exercise("def double(x):\\n    y = x + x  #: twice x\\n    return y"))
    def double(x):
        y = ...  # twice x
        return y
    """
    lines = solution.splitlines()
    marked = [
        node for node in ast.walk(ast.parse(solution)) if isinstance(node, ast.stmt) and _mark(node, lines)
    ]
    for node in sorted(marked, key=lambda node: -node.lineno):
        assert node.end_lineno is not None
        indent = " " * node.col_offset
        lines[node.lineno - 1 : node.end_lineno] = [f"{indent}{_left_side(node)}...  # {_mark(node, lines)}"]
    return "\n".join(lines) + ("\n" if solution.endswith("\n") else "")


def plain_solution(solution: str) -> str:
    """Return a solution with its marks as ordinary comments."""
    solution = solution.replace("Replace every `...` below, then run:", "This is the solution. To run it:")
    return "\n".join(re.sub(r"#: ", "# ", line) for line in solution.split("\n"))


def _mark(node: ast.stmt, lines: list[str]) -> str:
    """The text of the mark of a statement: on its last line, or on the first line of a block; "" if none."""
    body = getattr(node, "body", None)
    line = node.lineno if body else node.end_lineno
    assert line is not None
    found = MARK.search(lines[line - 1])
    return found[1] if found else ""


def _left_side(node: ast.stmt) -> str:
    if isinstance(node, ast.Assign):
        return "".join(
            f"{ast.unparse(target).removeprefix('(').removesuffix(')')} = " for target in node.targets
        )
    if isinstance(node, ast.AnnAssign | ast.AugAssign):
        return f"{ast.unparse(node.target)} = "
    return "return " if isinstance(node, ast.Return) else ""


def find_blanks(program: str, name: str) -> list[Blank]:
    """Return what is left to write in the top-level definition of `name`: its lines that are still `...`.

    >>> find_blanks("def double(x):\\n    return ...  # twice x", "double")
    [Blank(line=2, text='return ...  # twice x')]
    """
    lines = program.splitlines()
    return [
        Blank(node.lineno, lines[node.lineno - 1].strip())
        for statement in ast.parse(program).body
        if name in _names(statement)
        for node in ast.walk(statement)
        if isinstance(node, ast.stmt) and _is_blank(node)
    ]


def _names(statement: ast.stmt) -> set[str]:
    """The names that a top-level statement defines."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return {
        node.id for target in targets if target for node in ast.walk(target) if isinstance(node, ast.Name)
    }


def _is_blank(node: ast.stmt) -> bool:
    value = getattr(node, "value", None)
    return isinstance(value, ast.Constant) and value.value is ...
