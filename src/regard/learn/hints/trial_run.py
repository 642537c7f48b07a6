"""One run of a program on a trial, with what every line of it has assigned."""

from __future__ import annotations

import ast
import copy
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.learn.lesson import Trial

Key = tuple[str, str]  # of a function and of a variable


class Assignment(NamedTuple):
    """What a statement has given to a name of a function; the name of a result is "return"."""

    function: str
    name: str
    statement: ast.stmt
    value: Any

    @property
    def key(self) -> Key:
        """What an assignment of the other run must share to be compared with this one."""
        return self.function, self.name


class Program(NamedTuple):
    """A program that is loaded: its text, the name under which its frames are known, and what it defines."""

    text: str
    file: str
    names: dict[str, Any]

    def with_line(self, number: int, code: str, after: bool) -> Program:
        """Return the program with a line of code in place of the statement at a line, or after it."""
        return load(write_line(self.text, number, code, after), "<followed>")


def write_line(program: str, number: int, code: str, after: bool) -> str:
    """Return a program with code in place of the statement at a line, or after it.

    What is replaced leaves empty lines, so that the statements below keep their numbers.
    """
    statements = (node for node in ast.walk(ast.parse(program)) if isinstance(node, ast.stmt))
    statement = next(node for node in statements if node.lineno == number)
    lines, end = program.splitlines(), statement.end_lineno or number
    first = end if after else number - 1
    written = textwrap.indent(code, " " * statement.col_offset)
    lines[first:end] = [written, *[""] * (end - number if not after else 0)]
    return "\n".join(lines) + "\n"


def load(text: str, file: str) -> Program:
    """Run the text of a program under the name of a file that need not exist, and return it loaded."""
    program = Program(text, file, {"__name__": file})
    exec(compile(text, file, "exec"), program.names)
    return program


class TrialRun(NamedTuple):
    """What a run has assigned and returned, the error that it ended with, and the weights of its module."""

    assignments: list[Assignment]
    result: Any
    error: Exception | None
    state: dict[str, Tensor]


def run_trial(program: Program, task: str, trial: Trial, state: dict[str, Tensor]) -> TrialRun:
    """Run the task of this name on a trial; a module gets those of the weights in `state` that fit."""
    assignments: list[Assignment] = []
    inputs = copy.deepcopy(trial.inputs() if callable(trial.inputs) else trial.inputs)
    result = None
    torch.manual_seed(0)
    try:
        with _recording(program, assignments):
            thing = program.names[task]
            if trial.init is not None:
                thing = thing(**trial.init).train(trial.training)
                # Norms begin as ones: with other numbers no two parts are taken for each other.
                for parameter in thing.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
                _load_weights(thing, state)
                state = {name: value.clone() for name, value in thing.state_dict().items()}
                method = getattr(thing, "attention", None)
                # A block has a part of this name, too; a method gives the weights beside the output.
                thing = thing if method is None or isinstance(method, nn.Module) else method
            # As the judge calls a function: a write to a weight fails there unless it stands in no_grad.
            with torch.set_grad_enabled(trial.init is None):
                result = thing(*inputs)
            effect = trial.then(result, *inputs)
            result = result if effect is None else effect
    except Exception as error:
        return TrialRun(assignments, result, error, state)
    return TrialRun(assignments, result, None, state)


def _load_weights(module: nn.Module, state: dict[str, Tensor]) -> None:
    own = module.state_dict()
    module.load_state_dict(
        {name: value for name, value in state.items() if name in own and own[name].shape == value.shape},
        strict=False,
    )


@contextmanager
def _recording(program: Program, assignments: list[Assignment]) -> Iterator[None]:
    """Record what every statement of a program assigns, while the block runs."""
    statements = {
        line: statement
        for statement in ast.walk(ast.parse(program.text))
        if isinstance(statement, ast.Assign | ast.AugAssign | ast.Return | ast.Expr)
        for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    }
    pending: dict[FrameType, ast.stmt | None] = {}

    def trace(frame: FrameType, event: str, value: Any) -> Callable[..., Any] | None:
        if frame.f_code.co_filename != program.file:
            return None
        statement = pending.get(frame)
        following = statements.get(frame.f_lineno)
        if event == "exception":
            pending[frame] = None
        elif event == "return":
            pending.pop(frame, None)
            if isinstance(statement, ast.Return):
                assignments.append(Assignment(frame.f_code.co_name, "return", statement, _keep(value)))
            elif statement is not None:
                assignments.extend(_assigned(frame, statement))
        elif event == "line" and following is not statement:
            if statement is not None:
                assignments.extend(_assigned(frame, statement))
            pending[frame] = following
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def _assigned(frame: FrameType, statement: ast.stmt) -> Iterator[Assignment]:
    for name in targets_of(statement):
        if name.endswith("()"):
            yield Assignment(frame.f_code.co_name, name, statement, None)
            continue
        holder, _, attribute = name.rpartition(".")
        value = frame.f_locals.get(holder or name)
        value = getattr(value, attribute, None) if holder else value
        yield Assignment(frame.f_code.co_name, name, statement, _keep(value))


def targets_of(statement: ast.stmt) -> list[str]:
    """Return the names that a statement assigns: variables, attributes of self, and what an index is set of.

    A call that stands alone counts as one by the name of what it calls, "head.eval()".
    """
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return [f"{ast.unparse(statement.value.func)}()"]
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    names = []
    for target in targets:
        for node in target.elts if isinstance(target, ast.Tuple) else [target]:
            node = node.value if isinstance(node, ast.Subscript) else node
            if isinstance(node, ast.Name | ast.Attribute):
                names.append(ast.unparse(node))
    return names


def _keep(value: Any) -> Any:
    """A value as it is now: tensors may be changed later."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) in (tuple, list):
        return type(value)(_keep(part) for part in value)
    return value
