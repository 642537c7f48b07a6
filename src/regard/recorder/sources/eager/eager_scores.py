"""Scores and weights of attention that is written out, and what each operation makes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from regard.recorder.sources.structure_of_models.head_order import LeadingAxes

# Scores that are set to less are masked: next to ordinary scores their exponential is 0.
LOW = -1e3
PRIMES = (2, 3, 5, 7, 11, 13, 17)  # lengths of axes that show how a function permutes them
RESHAPING = {"view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten", "view_as", "reshape_as"}
# Graphs of torch.export write a reshape as this operator.
RESHAPING |= {"unsafe_view"}
PERMUTING = {"transpose", "permute", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "T", "mT", "adjoint"}
SELECTING = {
    "__getitem__",
    "slice",
    "chunk",
    "split",
    "unbind",
    "select",
    "narrow",
    "expand",
    "tensor_split",
    "einsum",
}
SAME = {
    "to",
    "float",
    "double",
    "half",
    "bfloat16",
    "type",
    "type_as",
    "contiguous",
    "clone",
    "detach",
    "data",
}
# Graphs of torch.export write a cast, a copy and a constant as these operators.
SAME |= {"to_copy", "alias", "lift_fresh_copy"}
# They leave ordinary scores as they are: GroundingDINO clamps its own, XGLM takes the maximum with the
# lowest number. Where one of them did change a score, the weights do not agree and are kept themselves.
SAME |= {"nan_to_num", "clamp", "clamp_min", "clamp_max", "maximum", "max", "dropout", "cuda", "cpu"}
CONCATENATING = {"cat", "concat", "concatenate"}
SECOND_SOFTMAX = "it takes a softmax of a softmax"
CHANGED = "its weights are changed between the softmax and the product with the values"


@dataclass(frozen=True)
class Scores:
    """What is known of a tensor of scores: scale · left @ rightᵀ + terms, with its axes permuted.

    `is_known` is false if something else was done to the product; then the other fields mean nothing.
    """

    left: Tensor  # (…, X, D)
    right: Tensor  # (…, Y, D)
    axes: tuple[int, ...]
    """scores.permute(axes) is (…, X, Y)."""
    scale: float = 1.0
    softcap: float | None = None
    terms: tuple[Tensor, ...] = ()
    """Mask tensors, which broadcast to the scores: booleans say what is visible, floats are added."""
    constant: tuple[bool, bool] = (False, False)
    """Whether the left and the right operand are made of nothing but parameters."""
    is_known: bool = True

    @property
    def unknown(self) -> Scores:
        """The scores after something that is not understood."""
        return dataclasses.replace(self, is_known=False, terms=())

    def reversed(self) -> Scores:
        """Return the same scores with keys on the right where they are on the left."""
        *lead, x, y = self.axes
        return dataclasses.replace(
            self, left=self.right, right=self.left, axes=(*lead, y, x), constant=self.constant[::-1]
        )

    def exchanged(self) -> Scores:
        """Return the same scores with the first two axes of their queries and keys exchanged."""
        first, second, *rest = self.axes
        left, right = (x.transpose(0, 1) for x in (self.left, self.right))
        return dataclasses.replace(self, left=left, right=right, axes=(second, first, *rest))

    @property
    def is_ordered(self) -> bool:
        """Whether the axes are not permuted."""
        return self.axes == tuple(range(len(self.axes)))


@dataclass(frozen=True)
class Weights:
    """The result of a softmax of scores, or a tensor made of it."""

    scores: Scores
    whole: Tensor
    """What the softmax returned."""
    part: Tensor | None
    """What this tensor is if the weights have not been changed: `whole` with its axes moved."""
    count: int | None
    """How often `whole` had been written to in place."""
    modules: tuple[nn.Module, ...]
    """The modules whose code called the softmax, the outermost first."""
    problem: str | None = None


@dataclass(frozen=True)
class EagerAttention:
    """One attention: weights (…, T, S) times values (…, S, E) is the output (…, T, E)."""

    weights: Weights
    used: Tensor
    """The weights that were multiplied, (…, T, S)."""
    unchanged: Tensor | None
    """The weights as the softmax returned them, in the same order; None if they can't be told."""
    v: Tensor
    output: Tensor
    modules: tuple[nn.Module, ...]
    """The modules whose code computed both the softmax and the product, the outermost first."""
    is_composed: bool
    """Whether the values are themselves a product with attention weights."""
    stacked: int
    """From how many tensors the values were concatenated along their first axis; 0 if they were not."""
    is_told: bool
    """Whether it is known which axis counts the queries, where all heads share their keys."""
    leading_axes: LeadingAxes | None
    """The first two axes of the values, (B, H) or (H, B), which may have been merged; None if not known."""
    restore: Callable[[Tensor], Tensor] = field(repr=False)
    """Turns an output (…, T, E) into what the product returned."""

    def exchanged(self) -> EagerAttention:
        """Return the same attention with the first two of its axes exchanged: (B, H, …) for (H, B, …)."""
        weights, scores = self.weights, self.weights.scores
        if scores.is_known and len(scores.axes) == 4:
            weights = dataclasses.replace(weights, scores=scores.exchanged())
        return dataclasses.replace(
            self,
            weights=weights,
            used=self.used.transpose(0, 1),
            unchanged=None if self.unchanged is None else self.unchanged.transpose(0, 1),
            v=self.v.transpose(0, 1),
            output=self.output.transpose(0, 1),
            leading_axes=None,
            restore=lambda x: self.restore(x.transpose(0, 1)),
        )


def next_scores(
    scores: Scores,
    func: Any,
    name: str,
    args: Any,
    kwargs: dict[str, Any],
    position: int,
    others: list[Any],
    output: Tensor,
) -> Scores | None:
    """Return known scores after a function, or None if they are known no longer."""
    x = args[position]
    if name in SAME:
        return scores
    if name in ("mul", "div"):
        return _scaled(scores, others[0], name == "div") if name == "mul" or position == 0 else None
    if name in ("add", "sub") and len(others) == 1:
        return _added(scores, others[0], position, negative=name == "sub")
    if name == "masked_fill" and position == 0:
        mask, value = others
        return _with_term(scores, ~mask) if _is_low(value) else None
    if name == "where" and len(others) == 2:
        is_method = position == 0
        condition, value = others
        visible = condition if is_method or position == 1 else ~condition
        return _with_term(scores, visible) if _is_low(value) else None
    # A mask or a bias before a `tanh` is squashed by it, which no map of ours can say.
    if name == "tanh" and not scores.terms and scores.softcap is None:
        return dataclasses.replace(scores, softcap=1.0)
    if name in PERMUTING and position == 0:
        # The function itself is asked, so that every way to name axes is understood.
        lengths = func(torch.empty(PRIMES[: x.ndim], device="meta"), *args[1:], **kwargs).shape
        moved = [PRIMES.index(n) for n in lengths]  # axis i of the result was axis moved[i]
        axes = tuple(moved.index(axis) for axis in scores.axes)
        terms = tuple(_as_wide(term, x.ndim).permute(moved) for term in scores.terms)
        return dataclasses.replace(scores, axes=axes, terms=terms)
    if name in RESHAPING and scores.is_ordered and output.shape[-2:] == x.shape[-2:]:
        return _with_lead(scores, x.shape[:-2], output.shape[:-2])
    return None


def _scaled(scores: Scores, factor: Any, divide: bool) -> Scores | None:
    """Return scores times a number, or times a tensor that belongs to the queries or the keys."""
    # A learned temperature is a tensor.
    if isinstance(factor, Tensor) and factor.numel() == 1:
        factor = float(factor)
    if isinstance(factor, Tensor):
        if (
            not scores.is_ordered
            or scores.terms
            or scores.softcap is not None
            or not factor.is_floating_point()
        ):
            # OpenAI's GPT multiplies its scores by a mask of 0 and 1 before it adds −10,000 where it is 0. A
            # factor that is no such mask gives other weights, which are then kept themselves.
            return scores
        wide = _as_wide(factor, len(scores.axes))
        wide = wide.reciprocal() if divide else wide
        if wide.shape[-1] == 1:
            return dataclasses.replace(scores, left=scores.left * wide)
        # A factor for each key belongs to the keys, unless it is such a mask.
        if wide.shape[-2] == 1 and not bool(((wide == 0) | (wide == 1)).all()):
            return dataclasses.replace(scores, right=scores.right * wide.mT)
        return scores
    factor = 1.0 / factor if divide else float(factor)
    if scores.softcap is not None:
        return None if scores.terms else dataclasses.replace(scores, softcap=scores.softcap * factor)
    if any(term.dtype != torch.bool for term in scores.terms):
        terms = tuple(term if term.dtype == torch.bool else term * factor for term in scores.terms)
        return dataclasses.replace(scores, scale=scores.scale * factor, terms=terms)
    return dataclasses.replace(scores, scale=scores.scale * factor)


def _added(scores: Scores, term: Any, position: int, negative: bool) -> Scores | None:
    """Return scores plus a tensor; a number changes no weight."""
    if negative and position == 1:
        return None
    if not isinstance(term, Tensor) or term.numel() == 1:
        return scores
    return _with_term(scores, -term if negative else term) if term.is_floating_point() else None


def _with_term(scores: Scores, term: Tensor) -> Scores:
    return dataclasses.replace(scores, terms=(*scores.terms, term))


def _with_lead(scores: Scores, old: torch.Size, new: torch.Size) -> Scores:
    """Return scores whose axes before the last two have another shape."""
    left, right, *terms = (
        _reshaped_lead(_as_wide(x, len(old) + 2), old, new)
        for x in (scores.left, scores.right, *scores.terms)
    )
    axes = tuple(range(len(new) + 2))
    return dataclasses.replace(scores, left=left, right=right, terms=tuple(terms), axes=axes)


def _reshaped_lead(x: Tensor, old: torch.Size, new: torch.Size) -> Tensor:
    """Return x with other axes before the last two; where it is the same for all of them, it stays so."""
    if all(n == 1 for n in x.shape[:-2]):
        return x.reshape(*(1 for _ in new), *x.shape[-2:])
    return x.expand(*old, *x.shape[-2:]).reshape(*new, *x.shape[-2:])


def _as_wide(x: Tensor, ndim: int) -> Tensor:
    """Return x with axes of length 1 before its own."""
    return x[(None,) * (ndim - x.ndim)]


def _is_low(value: Any) -> bool:
    """Whether a number, or all of a tensor, masks a score."""
    return bool((value.detach() <= LOW).all()) if isinstance(value, Tensor) else float(value) <= LOW
