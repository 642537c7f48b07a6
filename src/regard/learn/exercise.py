"""Exercises: a solution with the learner's lines left out, and what of it is still to be written.

A solution imports what is a stage; `with_stages` puts the code of the stage there. A statement whose line
ends in `#: what it is, (shape)` is for the learner to write. In the exercise it is
`name = ...  # what it is, (shape)`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

STAGES = Path(__file__).parent.parent / "stages"
MARK = re.compile(r"\s*#: (.*)$")
NOT_IN_THE_LESSON = "# not in the lesson"
# An argument for such lines alone. The checker would expect a lesson's class that takes a mask to apply it.
MASK_ARGUMENT = ", mask: Mask | Tensor | None = None"


HOW_TO_RUN = """
Replace every `...` below, then run:

    regard learn {number} --check      judges this file, and names your mistake
    regard learn {number} --watch      does so whenever you save it
    regard learn {number} --hint       says how to fix it
    python lesson{number}.py           runs the lines at the end
"""


class Blank(NamedTuple):
    """A line that is still to be written: its number, and what it should be."""

    line: int
    text: str


def with_commands(solution: str, number: int) -> str:
    """Return a lesson's solution whose docstring ends with how to run it, unless it says so itself."""
    if "regard learn" in solution:
        return solution
    about, end, program = solution.partition('"""\n')
    return f"{about}{HOW_TO_RUN.format(number=number)}{end}{program}"


def with_stages(solution: str) -> str:
    """Return a solution with the code of stages in place of the lines that import them.

    The code is that of the stage without its types, its checks of arguments, and the statements whose line
    says that they are not in the lesson.
    """
    lines = solution.splitlines()
    # From the end, so that the line numbers of the statements before stay right.
    for node in reversed(ast.parse(solution).body):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("regard.stages."):
            stage = (STAGES / f"{str(node.module).split('.')[-1]}.py").read_text(encoding="utf-8")
            code = "\n\n\n".join(_definition(stage, alias.name) for alias in node.names)
            lines[node.lineno - 1 : node.end_lineno] = ["", *code.splitlines(), ""]
    # A stage's code brings empty lines of its own.
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines) + "\n")


def _definition(stage: str, name: str) -> str:
    """The class or function of this name in a stage, as a lesson has it."""
    stage = stage.replace(MASK_ARGUMENT, "")
    lines = stage.splitlines()
    (definition,) = (node for node in ast.parse(stage).body if name in find_names(node))
    left_out: set[int] = set()
    for node in ast.walk(definition):
        if isinstance(node, ast.stmt) and _is_left_out(node, lines):
            left_out.update(_line_numbers(node))
        if isinstance(node, ast.FunctionDef):
            _drop_types(node, lines)
    code = "\n".join(lines[n - 1] for n in _line_numbers(definition) if n not in left_out)
    return code.replace("\n\n\n", "\n\n")


def _line_numbers(node: ast.stmt) -> range:
    assert node.end_lineno is not None
    return range(node.lineno, node.end_lineno + 1)


def _is_left_out(node: ast.stmt, lines: list[str]) -> bool:
    """Whether a lesson has no such line: a check, the type of an attribute, or what its comment says."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return ast.unparse(node.value.func).startswith("check_")
    if isinstance(node, ast.AnnAssign):
        return node.value is None
    return NOT_IN_THE_LESSON in lines[node.lineno - 1]


def _drop_types(function: ast.FunctionDef, lines: list[str]) -> None:
    """Take the types out of the lines that hold the signature of a function."""
    if function.returns is not None:
        at = function.returns.lineno - 1
        lines[at] = re.sub(r" -> .*:$", ":", lines[at])
    for argument in reversed(function.args.args):
        if argument.annotation is not None:
            line = lines[argument.lineno - 1]
            default = re.sub(r"^ = ", "=", line[argument.end_col_offset :])
            lines[argument.lineno - 1] = line[: argument.col_offset + len(argument.arg)] + default


def make_exercise(solution: str) -> str:
    """Return a solution with the marked statements left out.

    >>> print(make_exercise("def double(x):\\n    y = x + x  #: twice x\\n    return y"))
    def double(x):
        y = ...  # twice x
        return y
    """
    lines = solution.splitlines()
    # From the end, so that the numbers of the lines before stay right.
    for node in reversed(_marked(ast.parse(solution), lines)):
        assert node.end_lineno is not None
        indent = " " * node.col_offset
        lines[node.lineno - 1 : node.end_lineno] = [f"{indent}{_left_side(node)}...  # {_mark(node, lines)}"]
    return "\n".join(lines) + ("\n" if solution.endswith("\n") else "")


def plain_solution(solution: str) -> str:
    """Return a solution with its marks as ordinary comments."""
    solution = solution.replace("Replace every `...` below, then run:", "This is the solution. To run it:")
    return "\n".join(re.sub(r"#: ", "# ", line) for line in solution.split("\n"))


def definition_of(solution: str, name: str) -> str:
    """Return the lines of a solution that define a name, as they are."""
    (statement,) = (statement for statement in ast.parse(solution).body if name in find_names(statement))
    lines = solution.splitlines()
    return "\n".join(lines[number - 1] for number in _line_numbers(statement))


def marked_statements(code: str) -> list[str]:
    """Return the statements of a piece of code that the learner writes.

    >>> marked_statements("half = 1 / 2  #: one over two")
    ['half = 1 / 2']
    """
    marked = _marked(ast.parse(code), code.splitlines())
    return [ast.get_source_segment(code, node) or "" for node in marked]


def marks_of(solution: str) -> dict[str, str]:
    """Return what the statements that the learner writes should be, each by its code on one line.

    >>> marks_of("half = 1 / 2  #: one over two")
    {'half = 1 / 2': 'one over two'}
    """
    lines = solution.splitlines()
    return {
        one_line(ast.get_source_segment(solution, node) or ""): _mark(node, lines)
        for node in _marked(ast.parse(solution), lines)
    }


def one_line(code: str) -> str:
    """Return a statement on one line and without its comments."""
    return " ".join(line.split("  #")[0].strip() for line in code.splitlines())


def _marked(tree: ast.AST, lines: list[str]) -> list[ast.stmt]:
    """The statements for the learner to write, in the order of their lines."""
    marked = (node for node in ast.walk(tree) if isinstance(node, ast.stmt) and _mark(node, lines))
    return sorted(marked, key=lambda node: node.lineno)


def _mark(node: ast.stmt, lines: list[str]) -> str:
    """The text of the mark of a statement: on its last line, or on the first line of a block; "" if none."""
    # A block is marked on its first line (`if … :`), since its last line belongs to a statement of its own.
    body = getattr(node, "body", None)
    line = node.lineno if body else node.end_lineno
    assert line is not None
    found = MARK.search(lines[line - 1])
    return found[1] if found else ""


def _left_side(node: ast.stmt) -> str:
    if isinstance(node, ast.Assign):
        # Brackets, since ast.unparse writes `a, b = …` as `(a, b) = …`.
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
    blanks = [
        Blank(node.lineno, lines[node.lineno - 1].strip())
        for statement in ast.parse(program).body
        if name in find_names(statement)
        for node in ast.walk(statement)
        if isinstance(node, ast.stmt) and _is_blank(node)
    ]
    return sorted(blanks)  # ast.walk visits the lines after a loop before those in it


def find_names(statement: ast.stmt) -> set[str]:
    """Return the names that a top-level statement defines."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return {
        node.id for target in targets if target for node in ast.walk(target) if isinstance(node, ast.Name)
    }


def _is_blank(node: ast.stmt) -> bool:
    value = getattr(node, "value", None)
    return isinstance(value, ast.Constant) and value.value is ...
