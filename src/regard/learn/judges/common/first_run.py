"""The first run of a learner's module: errors, missing names and wrong shapes, in words."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.learn.hints.errors import describe_error, find_hint
from regard.learn.judges.common.verdicts import attend, named_mistake
from regard.learn.lesson import NotDoneError, Outcome

RETURN_BOTH = "give both a name, and return the two, the output first: return out, weights"
DOT_T = re.compile(r"^line \d+, .*\w\.T\b")  # .T in the line that raised the error


class OutputShape(NamedTuple):
    """The shape that a tensor should have, what its axes are, "(B, T, head_dim)", and how to get it."""

    sizes: tuple[int, ...]
    axes: str
    hint: str = ""


def first_run(
    name: str,
    thing: Any,
    init: dict[str, Any],
    inputs: tuple[Tensor, ...],
    out: OutputShape,
    weights: OutputShape,
    projections: tuple[str, ...] = ("W_q", "W_k", "W_v"),
) -> None:
    """Build the learner's class and run it once; raise what is wrong with that.

    Arguments:
        name: of the task.
        thing: what the learner's file has under that name.
        init: arguments of the class.
        inputs: arguments of its forward.
        out, weights: the shapes of the two tensors that forward returns.
        projections: names that the module has to have, each an `nn.Linear`.
    """
    if not isinstance(thing, type) or not issubclass(thing, nn.Module):
        said = f"expected `{name}` to be a class that derives from nn.Module"
        raise NotDoneError(said, hint=f"class {name}(nn.Module):")
    made = thing(**init).eval()
    _check_projections(made, projections)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of .T on a batch, which is answered below
        answer = attend(made, *inputs)
    _check_answer(made, answer, inputs, out, weights)


def _check_projections(made: nn.Module, projections: tuple[str, ...]) -> None:
    for projection in projections:
        if not isinstance(getattr(made, projection, None), nn.Linear):
            said = (
                f"expected `self.{projection}`, an nn.Linear: the lesson and its check find it by this name"
            )
            raise NotDoneError(said, hint=f"in __init__: self.{projection} = nn.Linear(…)")
    # By identity: equal weights at the start are chance, one module for two roles is the mistake.
    if len({id(getattr(made, projection)) for projection in projections}) < len(projections):
        raise named_mistake(
            "one-projection",
            "Two of W_q, W_k and W_v are one and the same module.",
            hint="give each of the three an nn.Linear of its own",
        )


def error_outcome(
    name: str, error: Exception, module: ModuleType, hints: tuple[tuple[str, str], ...]
) -> Outcome:
    """Return the outcome for code that raised an error, with a hint if the error is a usual one.

    `hints` are those of the task's table, each after a part of the error's text. A note that the judge has
    added to the error comes first.
    """
    said = describe_error(error, Path(str(module.__file__)))
    if "Module.__init__() call" in said:
        said = "PyTorch cannot register the projections: `__init__` does not call that of nn.Module first"
        return Outcome(name, "wrong", said, hint="super().__init__() as the first line of __init__")
    if DOT_T.search(said):
        return named_mistake("dot-t-on-a-batch", said).outcome(name)
    notes = " ".join(getattr(error, "__notes__", []))
    hint = notes or next((hint for part, hint in hints if part in f"{said} {error}"), "")
    in_class = isinstance(getattr(module, name, None), type)
    return Outcome(name, "wrong", said, hint=hint or find_hint(said, in_class))


def _check_answer(
    made: nn.Module, answer: Any, inputs: tuple[Tensor, ...], out: OutputShape, weights: OutputShape
) -> None:
    method = "attention" if hasattr(made, "attention") else "forward"
    if not isinstance(answer, tuple) or len(answer) != 2 or not all(isinstance(t, Tensor) for t in answer):
        said = f"{method} returns {describe_answer(answer)}; expected two tensors, the output and the weights"
        raise NotDoneError(said, hint=RETURN_BOTH)
    shapes = [tuple(tensor.shape) for tensor in answer]
    if shapes == [weights.sizes, out.sizes]:
        said = f"{method} returns the weights first; expected the output first"
        raise NotDoneError(said, hint="return out, weights, in this order")
    given = " and ".join(str(tuple(x.shape)) for x in inputs)
    # The weights first: an output is made of them.
    for what, shape, expected, hint in (
        ("weights", shapes[1], weights, "a weight for each pair of tokens is softmax of q @ k.mT"),
        ("output", shapes[0], out, "the output is a mix of the values, weights @ v"),
    ):
        if shape != expected.sizes:
            said = f"for tokens {given}, expected the {what} {expected.sizes}, which is {expected.axes}"
            raise NotDoneError(f"{said}; got {shape}", hint=expected.hint or hint)


def describe_answer(answer: Any) -> str:
    """What a learner's code returned, in a few words."""
    if isinstance(answer, Tensor):
        return f"one tensor {tuple(answer.shape)}"
    if isinstance(answer, tuple | list):
        return f"a {type(answer).__name__} of {len(answer)}"
    return "nothing" if answer is None else f"{answer!r}"[:80]
