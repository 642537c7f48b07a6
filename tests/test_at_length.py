"""What `make test` leaves to `make test-all`: each such test names one that notices the usual breakage."""

import ast
import re
from pathlib import Path

FOLDER = Path(__file__).parent
MARK = "pytest.mark.at_length"


def guards(node):
    """The tests that the marks of a function, or of the cases of its list, name."""
    calls = [x for x in ast.walk(node) if isinstance(x, ast.Call) and ast.unparse(x.func) == MARK]
    return [ast.literal_eval(argument) for call in calls for argument in call.args]


def is_whole(function):
    """Whether all of a test is left out, not only some cases of its list."""
    return any(isinstance(x, ast.Call) and ast.unparse(x.func) == MARK for x in function.decorator_list)


def of_file(tree):
    """The tests that a mark of all tests of a file names."""
    assigned = [x for x in tree.body if isinstance(x, ast.Assign)]
    return [guard for x in assigned if ast.unparse(x.targets[0]) == "pytestmark" for guard in guards(x)]


def test_what_is_left_out_is_guarded_by_a_test_that_is_not():
    texts = {path: path.read_text(encoding="utf-8") for path in FOLDER.rglob("test_*.py")}
    named, whole = set(), set()
    for tree in [ast.parse(text) for text in texts.values() if MARK in text]:
        for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
            named |= {(function.name, guard) for mark in function.decorator_list for guard in guards(mark)}
            if of_file(tree) or is_whole(function):
                named |= {(function.name, guard) for guard in of_file(tree)}
                whole.add(function.name)
    always = {name for text in texts.values() for name in re.findall(r"def (test_\w+)", text)} - whole
    assert named
    assert {(name, guard) for name, guard in named if guard not in always} == set()
