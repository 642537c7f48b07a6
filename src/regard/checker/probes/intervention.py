"""Interventions: one step of the code is changed while it runs, until its output agrees with the reference's.

The change that repairs the output names the mistake, for attention whose formula the oracle does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.overrides import TorchFunctionMode

from regard.checker.diagnose import minimise_scale

_AXES = {-2: "softmax-over-queries", 1: "softmax-over-heads", 0: "softmax-over-batch"}


class SoftmaxIntervention(TorchFunctionMode):
    """Multiplies what softmax is given, or moves its axis to the last one, while the code runs.

    `axes` holds the axes over which softmax was taken, counted from the end where they are the last two.
    """

    def __init__(self, factor: float = 1.0, *, last_axis: bool = False) -> None:
        super().__init__()
        self.factor, self.last_axis = factor, last_axis
        self.axes: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "softmax":
            scores, *rest = args
            axis = int(kwargs.pop("dim", rest.pop(0) if rest else -1))
            self.axes.add(axis - scores.ndim if axis >= scores.ndim - 2 else axis)
            args = (scores * self.factor, -1 if self.last_axis else axis, *rest)
        elif name == "scaled_dot_product_attention" and args:
            self.axes.add(-1)
            # The scores are inside; scaled queries scale them.
            args = (args[0] * self.factor, *args[1:])
        return func(*args, **kwargs)


def name_by_intervention(
    difference: Callable[[int], float], widths: tuple[int, int] | None, tolerance: float
) -> tuple[str, str] | None:
    """Return the mistake whose repair makes the code agree with its reference, and the evidence; or None.

    Arguments:
        difference: runs the code on a question, 0 or 1, and returns how much its output differs from the
            reference's.
        widths: those of the heads in the two questions; None if they are not known, and equal.
        tolerance: the difference below which the outputs agree.
    """
    monitor = SoftmaxIntervention()
    with monitor:
        difference(0)
    if not monitor.axes:
        return None
    with SoftmaxIntervention(last_axis=True):
        repaired = max(difference(question) for question in (0, 1))
    for axis in monitor.axes & _AXES.keys():
        if repaired < tolerance:
            return _AXES[axis], f"With softmax over the keys, not over axis {axis}, it equals your reference."
    factors = [_find_factor(difference, question, tolerance) for question in (0, 1)]
    return None if None in factors else _name_factor([f for f in factors if f is not None], widths)


def _find_factor(difference: Callable[[int], float], question: int, tolerance: float) -> float | None:
    """Return how many times the code's scores are the reference's, if that is all that differs."""

    def error(factor: float) -> float:
        with SoftmaxIntervention(factor):
            return difference(question)

    factor = minimise_scale(error)
    return 1 / factor if factor is not None and error(factor) < tolerance else None


def _name_factor(factors: list[float], widths: tuple[int, int] | None) -> tuple[str, str]:
    """Return the mistake by which the scores are these times the reference's, in two questions."""
    squares = [max(factor, 1 / factor) ** 2 for factor in factors]
    if widths is None:
        # Without the widths, the square of a factor that is a whole number is taken for one.
        by_width = abs(squares[0] - round(squares[0])) < 1e-2 and round(squares[0]) >= 4
    else:
        by_width = all(abs(s / width - 1) < 1e-3 for s, width in zip(squares, widths, strict=True))
    name = ("no-scale" if factors[0] > 1 else "scaled-twice") if by_width else "constant-scale"
    width = round(squares[0])
    exact = abs(squares[0] - width) < 1e-2
    shown = ("" if factors[0] > 1 else "1/") + f"√{width}" if exact else f"{factors[0]:.4g}"
    return name, f"Its scores are {shown} times your reference's; but for that the outputs are equal."
