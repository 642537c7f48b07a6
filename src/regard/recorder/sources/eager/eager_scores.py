"""Scores and weights of attention that is written out, and what each operation makes of them.

Matrix products are read, in whichever way they are written, as a sum over named axes: `matmul`, `@`, `bmm`,
`baddbmm` and `einsum` are one thing here, two tensors whose axes have labels, and the labels of the result.
This file knows axes and numbers; what a product means is decided in `eager_trace`.
"""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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


Labels = tuple[str, ...]
PRODUCTS = {"matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "baddbmm", "einsum"}
"""Names of the functions that `read_product` reads."""


class Product(NamedTuple):
    """A product of two tensors: axes that share a label are multiplied, and summed if the result lacks it."""

    left: Tensor
    right: Tensor
    left_labels: Labels
    right_labels: Labels
    labels: Labels
    """The labels of the result."""
    factor: float = 1.0
    added: Tensor | None = None
    """What `baddbmm` adds to the product."""

    def reversed(self) -> Product:
        """Return the same product with its operands exchanged."""
        return self._replace(
            left=self.right,
            right=self.left,
            left_labels=self.right_labels,
            right_labels=self.left_labels,
        )

    @property
    def sizes(self) -> dict[str, int]:
        """The lengths of the axes by their labels."""
        pairs = ((self.left_labels, self.left), (self.right_labels, self.right))
        return {label: n for labels, x in pairs for label, n in zip(labels, x.shape, strict=True)}

    @property
    def summed(self) -> Labels:
        """The labels that both operands have and the result lacks."""
        return tuple(x for x in self.left_labels if x in self.right_labels and x not in self.labels)

    @property
    def is_plain(self) -> bool:
        """Whether no operand has an axis of its own that is summed alone, or an axis twice."""
        known = {*self.labels, *self.summed}
        operands = (self.left_labels, self.right_labels, self.labels)
        return known >= {*self.left_labels, *self.right_labels} and all(
            len(set(x)) == len(x) for x in operands
        )

    def own_labels(self) -> tuple[Labels, Labels]:
        """Return the labels of the result that only the left and only the right operand has."""
        left = tuple(x for x in self.labels if x in self.left_labels and x not in self.right_labels)
        right = tuple(x for x in self.labels if x in self.right_labels and x not in self.left_labels)
        return left, right


def arrange(x: Tensor, labels: Labels, wanted: Sequence[str]) -> Tensor:
    """Return x with its axes in the order `wanted`; an axis that it lacks has length 1."""
    x = x.permute([labels.index(label) for label in wanted if label in labels])
    for position, label in enumerate(wanted):
        if label not in labels:
            x = x.unsqueeze(position)
    return x


def read_product(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Product | None:
    """Return the product that a function computes, or None if it is not one of two tensors."""
    if name == "einsum":
        return _read_einsum(args)
    if name == "baddbmm":
        names = ("input", "batch1", "batch2", "beta", "alpha")
        bound = {"beta": 1, "alpha": 1, **dict(zip(names, args, strict=False)), **kwargs}
        # The operator of exported graphs calls its first argument `self`.
        bound["input"] = bound.get("input", bound.get("self"))
        if not all(isinstance(bound.get(x), Tensor) for x in names[:3]):
            return None
        product = _matmul(bound["batch1"], bound["batch2"])
        beta = float(bound["beta"])
        added = None if beta == 0 else bound["input"] if beta == 1 else bound["input"] * beta
        return None if product is None else product._replace(factor=float(bound["alpha"]), added=added)
    # `matmul` calls its second argument `other`, `mm` and `bmm` call it `mat2`.
    tensors = [*args, *(kwargs[x] for x in ("other", "mat2") if x in kwargs)]
    if len(tensors) != 2 or not all(isinstance(x, Tensor) for x in tensors):
        return None
    return _matmul(*(reversed(tensors) if name == "__rmatmul__" else tensors))


def _matmul(left: Tensor, right: Tensor) -> Product | None:
    """Return a matrix product of batches, which are broadcast."""
    # A vector has no axis that counts queries or keys.
    if min(left.ndim, right.ndim) < 2:
        return None
    lead = string.ascii_lowercase[: max(left.ndim, right.ndim) - 2]  # aligned at the last
    own = (lead[len(lead) - (x.ndim - 2) :] for x in (left, right))
    left_lead, right_lead = own
    return Product(left, right, (*left_lead, "X", "C"), (*right_lead, "C", "Y"), (*lead, "X", "Y"))


def _read_einsum(args: Sequence[Any]) -> Product | None:
    """Return an einsum of two tensors with an equation."""
    # `einsum` also takes its operands in a list.
    operands = args[1:] if len(args) != 2 or isinstance(args[1], Tensor) else args[1]
    if not isinstance(args[0], str) or len(operands) != 2:
        return None
    terms, arrow, result = args[0].replace(" ", "").partition("->")
    inputs = terms.split(",")
    if not arrow or len(inputs) != 2:
        return None
    # The axes of an ellipsis are numbered from the last.
    counts = [x.ndim - len(term.replace("...", "")) for term, x in zip(inputs, operands, strict=True)]
    widths = [count if "..." in term else 0 for term, count in zip(inputs, counts, strict=True)]
    left_labels, right_labels = (_labels(term, n) for term, n in zip(inputs, widths, strict=True))
    labels = _labels(result, max(widths) if "..." in result else 0)
    return Product(operands[0], operands[1], left_labels, right_labels, labels)


def _labels(term: str, ellipsis: int) -> Labels:
    """Return the labels of one operand of an equation, whose ellipsis stands for some axes."""
    before, dots, after = term.partition("...")
    dotted = [f"…{i}" for i in reversed(range(ellipsis))] if dots else []
    return (*before, *dotted, *after)
