"""What the judges of lessons 2 to 4 share: a module of the form `forward(x) -> (out, weights)`.

What learners usually forget is answered in a sentence, the rest is for the checker. Then the module gets the
projections of the running example, and its weights there have to be the right ones, digit for digit.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.learn.judges.verdicts import (
    attend,
    check_attention,
    example_picture,
    largest_difference,
    named_mistake,
)
from regard.learn.lesson import Outcome
from regard.stages.example import WK, WQ, WV, X

Weigh = Callable[[Tensor, Tensor], Tensor]  # the weights (…, T, T) of queries and keys (…, T, D)

B, T, D_MODEL, HEAD_DIM = 2, 5, 8, 6  # no two alike, so that no axis can be mistaken for another
MAX_SEQ_LEN = 16
PROJECTIONS = {"W_q": WQ, "W_k": WK, "W_v": WV}
TOLERANCE = 1e-5


def build(cls: Any, d_model: int, head_dim: int) -> Any:
    """Return a module of the learner's class in evaluation mode; that of lesson 4 has a longest length."""
    bounded = "max_seq_len" in inspect.signature(cls).parameters
    return cls(d_model, MAX_SEQ_LEN, head_dim).eval() if bounded else cls(d_model, head_dim).eval()


def judge_self_attention(name: str, cls: Any, weigh: Weigh, done: str, **options: Any) -> Outcome:
    """Judge a class of modules that `build` can build, with `(out, weights)` from its attention.

    Arguments:
        name: of the task.
        cls: the learner's class.
        weigh: the right weights of queries and keys.
        done: what to say if it is right.
        options: of `check_attention`: `hints`, `effects` and keyword arguments of `regard.check`.
    """
    wrong = find_wrong_form(name, cls) or find_wrong_values(name, cls, weigh)
    if wrong is not None:
        return wrong
    sizes = {"d_model": D_MODEL, "head_dim": HEAD_DIM, "max_seq_len": MAX_SEQ_LEN}
    init = {size: sizes[size] for size in inspect.signature(cls).parameters if size in sizes}
    outcome = check_attention(name, cls, done, init=init, **options)
    if outcome.status != "done":
        return outcome
    weights = example_weights(cls)
    difference = largest_difference(weights, weigh(X @ WQ, X @ WK))
    if difference > TOLERANCE:
        message = (
            f"it is right for d_model {D_MODEL} and head_dim {HEAD_DIM}; with the six tokens and projections "
            f"of the lesson, {WQ.shape[0]} and {WQ.shape[1]}, the weights differ by up to {difference:.2g}"
        )
        return Outcome(name, "wrong", message, hint="take every size from the tensors, such as k.shape[-1]")
    return replace(outcome, picture=example_picture(["your weights"], [weights]))


def find_wrong_form(name: str, cls: Any) -> Outcome | None:
    """Return what keeps the class from being run and compared at all; None if nothing does."""

    def wrong(message: str, hint: str) -> Outcome:
        return Outcome(name, "wrong", message, hint=hint)

    if not inspect.isclass(cls) or not issubclass(cls, nn.Module):
        return wrong(f"`{name}` is no class of modules", f"class {name}(nn.Module): …")
    try:
        module = build(cls, D_MODEL, HEAD_DIM)
    except AttributeError as error:
        if "__init__() call" not in str(error):
            raise
        message = "PyTorch cannot register the projections: `__init__` does not call that of nn.Module first"
        return wrong(message, "super().__init__() as the first line of __init__")
    for each in PROJECTIONS:
        if not isinstance(getattr(module, each, None), nn.Linear):
            line = f"self.{each} = nn.Linear(d_model, head_dim, bias=False) in __init__"
            return wrong(f"`self.{each}` is no nn.Linear; the lesson asks for W_q, W_k and W_v", line)
    if len({id(getattr(module, each)) for each in PROJECTIONS}) < len(PROJECTIONS):
        return named_mistake(name, "one-projection", "Two of W_q, W_k and W_v are one and the same module.")
    return find_wrong_answer(name, module)


def find_wrong_answer(name: str, module: nn.Module) -> Outcome | None:
    """Return what is wrong with the form of what `forward` returns; None if nothing is."""
    x = _tokens()
    try:
        answer = attend(module, x)
    except TypeError as error:
        if "operator.invert" in str(error):  # ~ of floats
            error.add_note("masks are boolean: torch.ones(T, T, dtype=torch.bool)")
        raise
    except RuntimeError as error:
        if _works(module, x[0]) and ".T" in str(traceback.extract_tb(error.__traceback__)[-1].line):
            evidence = f"Yours works on one sequence, and fails on a batch of {B}: {error}"
            return named_mistake(name, "dot-t-on-a-batch", evidence)
        error.add_note(
            f"x is {tuple(x.shape)} here: {B} sequences of {T} tokens of width {D_MODEL}. q, k and v should "
            f"be ({B}, {T}, {HEAD_DIM}), k.mT ({B}, {HEAD_DIM}, {T}), scores and weights ({B}, {T}, {T})"
        )
        raise
    hint = "return out, weights"
    if not isinstance(answer, tuple) or len(answer) != 2 or not all(isinstance(a, Tensor) for a in answer):
        message = f"forward returns {_describe(answer)}; expected two tensors, the output and the weights"
        return Outcome(name, "wrong", message, hint=hint)
    expected = {"output": (B, T, HEAD_DIM), "weights": (B, T, T)}
    shapes = [tuple(each.shape) for each in answer]
    if shapes == list(expected.values())[::-1]:
        message = "forward returns the weights first; expected the output first"
        return Outcome(name, "wrong", message, hint=hint)
    for (which, shape), own in zip(expected.items(), shapes, strict=True):
        if own != shape:
            message = (
                f"for x {tuple(x.shape)} and head_dim {HEAD_DIM} the {which} should be {shape}, not {own}"
            )
            hint = "weights have a row for each query and a column for each key; out = weights @ v"
            return Outcome(name, "wrong", message, hint=hint)
    return None


def find_wrong_values(name: str, cls: Any, weigh: Weigh) -> Outcome | None:
    """Return what is wrong if the weights are right and the output is not their mean of values, else None."""
    x = _tokens()
    module = build(cls, D_MODEL, HEAD_DIM)
    out, weights = attend(module, x)
    q, k, v = (getattr(module, each)(x) for each in PROJECTIONS)
    if _differ(weights, weigh(q, k)) or not _differ(out, weights @ v):
        return None
    others = {
        "it is the mean of the keys": weights @ k,
        "it is the mean of the queries": weights @ q,
        "the weights are transposed there, so that each column sums to 1": weights.mT @ v,
    }
    reason = next((reason for reason, other in others.items() if not _differ(out, other)), "")
    message = "the weights are right, and the output is not the mean of the values with these weights"
    return Outcome(
        name, "wrong", f"{message}{reason and f': {reason}'}", hint="v = self.W_v(x), then out = weights @ v"
    )


def example_weights(cls: Any) -> Tensor:
    """Return the weights (T, T) that the learner's class gives the running example."""
    module = build(cls, *WQ.shape)
    with torch.no_grad():
        for name, weight in PROJECTIONS.items():
            projection = getattr(module, name)
            projection.weight.copy_(weight.T)
            if projection.bias is not None:
                projection.bias.zero_()
        weights: Tensor = attend(module, X[None])[1][0]
    return weights


def _tokens() -> Tensor:
    return torch.randn(B, T, D_MODEL, generator=torch.Generator().manual_seed(0))


def _works(module: nn.Module, x: Tensor) -> bool:
    try:
        module(x)
    except Exception:
        return False
    return True


def _differ(a: Tensor, b: Tensor) -> bool:
    return largest_difference(a, b) > TOLERANCE


def _describe(answer: Any) -> str:
    """What a forward pass returned, in a few words."""
    if isinstance(answer, Tensor):
        return f"one tensor {tuple(answer.shape)}"
    if isinstance(answer, tuple):
        return f"{len(answer)} things"
    return "nothing" if answer is None else f"a {type(answer).__name__}"
