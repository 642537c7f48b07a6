"""The first run of a learner's module: errors, missing names and wrong shapes, in words."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.learn.error_hints import find_hint
from regard.learn.judgement import describe_error
from regard.learn.judges.verdicts import attend, named_mistake
from regard.learn.lesson import Outcome

DOT_T = re.compile(r"^line \d+, .*\w\.T\b")  # .T in the line that raised the error


class OutputShape(NamedTuple):
    """The shape that a tensor should have, and what its axes are: "(B, T, head_dim)"."""

    sizes: tuple[int, ...]
    axes: str


def first_run(
    name: str,
    thing: Any,
    module: ModuleType,
    init: dict[str, Any],
    inputs: tuple[Tensor, ...],
    out: OutputShape,
    weights: OutputShape,
    projections: tuple[str, ...] = ("W_q", "W_k", "W_v"),
    hints: tuple[tuple[str, str], ...] = (),
) -> Outcome | None:
    """Build the learner's class and run it once; return what is wrong with that, or None.

    Arguments:
        name: of the task.
        thing: what the learner's file has under that name.
        module: the learner's file.
        init: arguments of the class.
        inputs: arguments of its forward.
        out, weights: the shapes of the two tensors that forward returns.
        projections: names that the module has to have, each an `nn.Linear`.
        hints: further hints, each with the part of an error's text that it is for.
    """
    if not isinstance(thing, type) or not issubclass(thing, nn.Module):
        said = f"expected `{name}` to be a class that derives from nn.Module"
        return Outcome(name, "wrong", said, hint=f"class {name}(nn.Module):")
    try:
        made = thing(**init).eval()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of .T on a batch, which is answered below
            answer = attend(made, *inputs)
    except NotImplementedError:
        raise
    except Exception as error:
        return error_outcome(name, error, module, hints)
    for projection in projections:
        if not isinstance(getattr(made, projection, None), nn.Linear):
            said = (
                f"expected `self.{projection}`, an nn.Linear: the lesson and its check find it by this name"
            )
            return Outcome(name, "wrong", said, hint=f"self.{projection} = nn.Linear(…, …, bias=False)")
    return _wrong_answer(name, answer, inputs, out, weights)


def error_outcome(
    name: str, error: Exception, module: ModuleType, hints: tuple[tuple[str, str], ...] = ()
) -> Outcome:
    """Return the outcome for code that raised an error, with a hint if the error is a usual one."""
    said = describe_error(error, Path(str(module.__file__)))
    if DOT_T.search(said):
        return named_mistake(name, "dot-t-on-a-batch", said)
    hint = next((hint for part, hint in hints if part in str(error)), "")
    return Outcome(name, "wrong", said, hint=hint or find_hint(said))


def _wrong_answer(
    name: str, answer: Any, inputs: tuple[Tensor, ...], out: OutputShape, weights: OutputShape
) -> Outcome | None:
    if not isinstance(answer, tuple) or len(answer) != 2 or not all(isinstance(t, Tensor) for t in answer):
        said = "expected forward to return two tensors, the output and the weights"
        return Outcome(name, "wrong", f"{said}, got {_describe(answer)}", hint="return out, weights")
    for what, tensor, expected in (("output", answer[0], out), ("weights", answer[1], weights)):
        if tuple(tensor.shape) != expected.sizes:
            given = " and ".join(str(tuple(x.shape)) for x in inputs)
            said = f"for tokens {given}, expected the {what} {expected.sizes}, which is {expected.axes}"
            hint = "return out, weights, in this order" if tuple(tensor.shape) == weights.sizes else ""
            return Outcome(name, "wrong", f"{said}; got {tuple(tensor.shape)}", hint=hint)
    return None


def _describe(answer: Any) -> str:
    if isinstance(answer, Tensor):
        return f"one tensor {tuple(answer.shape)}"
    return f"{len(answer)} things" if isinstance(answer, tuple) else f"{answer!r}"[:80]
