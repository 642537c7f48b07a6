"""What `make test` leaves to `make test-all`: each such test names one that notices the usual breakage."""

from __future__ import annotations

import ast
from pathlib import Path

FOLDER = Path(__file__).parent
MARK = "pytest.mark.at_length"


def functions() -> list[tuple[Path, ast.FunctionDef]]:
    found = []
    for path in FOLDER.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += [(path, node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return found


def guards(node: ast.AST) -> list[str]:
    """The tests that the marks of a function, or of the cases of its list, name."""
    calls = [x for x in ast.walk(node) if isinstance(x, ast.Call) and ast.unparse(x.func) == MARK]
    return [ast.literal_eval(argument) for call in calls for argument in call.args]


def test_what_is_left_out_is_guarded_by_a_test_that_is_not() -> None:
    everywhere = functions()
    left_out = {node.name for _, node in everywhere if any(guards(x) for x in node.decorator_list)}
    always = {node.name for _, node in everywhere} - left_out
    missing = [
        f"{path.relative_to(FOLDER)}::{node.name}: {guard}"
        for path, node in everywhere
        for decorator in node.decorator_list
        for guard in guards(decorator)
        if guard not in always
    ]
    assert left_out
    assert missing == []
