"""What `make test` leaves to `make test-all`: each such test names one that notices the usual breakage."""

from __future__ import annotations

import ast
import re
from pathlib import Path

FOLDER = Path(__file__).parent
MARK = "pytest.mark.at_length"


def guards(node: ast.AST) -> list[str]:
    """The tests that the marks of a function, or of the cases of its list, name."""
    calls = [x for x in ast.walk(node) if isinstance(x, ast.Call) and ast.unparse(x.func) == MARK]
    return [ast.literal_eval(argument) for call in calls for argument in call.args]


def is_whole(function: ast.FunctionDef) -> bool:
    """Whether all of a test is left out, not only some cases of its list."""
    return any(isinstance(x, ast.Call) and ast.unparse(x.func) == MARK for x in function.decorator_list)


def test_what_is_left_out_is_guarded_by_a_test_that_is_not() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in FOLDER.rglob("test_*.py")}
    marked = [ast.walk(ast.parse(text)) for text in texts.values() if MARK in text]
    functions = [node for found in marked for node in found if isinstance(node, ast.FunctionDef)]
    whole = {node.name for node in functions if is_whole(node)}
    always = {name for text in texts.values() for name in re.findall(r"def (test_\w+)", text)} - whole
    named = {(x.name, guard) for x in functions for mark in x.decorator_list for guard in guards(mark)}
    assert named
    assert {(name, guard) for name, guard in named if guard not in always} == set()
