"""Reads matrix products, in whichever way they are written, as a sum over named axes.

`matmul`, `@`, `bmm`, `baddbmm` and `einsum` are one thing here: two tensors whose axes have labels, and the
labels of the result. This file knows axes; what a product means is decided in `eager_trace`.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

Labels = tuple[str, ...]
NAMES = {"matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "baddbmm", "einsum"}
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
