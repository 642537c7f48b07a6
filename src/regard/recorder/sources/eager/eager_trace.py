"""Follows attention that a module computes in its own code: a product, a softmax over keys, a product.

While code runs that nobody here knows, an `EagerTrace` sees every torch function that it calls. The result
of a product of two activations may be scores; what is done to scores up to a softmax is noted; and if the
result of the softmax is multiplied with something else, that is attention. A softmax that is not preceded and
followed by such products (of a router, a sampler or a loss) is none. Nothing that is computed is changed.
This file knows functions and tensors; `eager_call` makes an attention call of what was followed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from regard.recorder.attention_call import dropout_problem
from regard.recorder.map_preparation import write_count
from regard.recorder.sources.eager.eager_scores import (
    CONCATENATING,
    PERMUTING,
    PRODUCTS,
    RESHAPING,
    SELECTING,
    EagerAttention,
    Product,
    Scores,
    Weights,
    arrange,
    next_scores,
    read_product,
)
from regard.recorder.sources.sdpa import AttentionMode, run_and_disown
from regard.recorder.sources.structure_of_models.calling_modules import calling_module, calling_modules
from regard.recorder.sources.structure_of_models.code_names import function_name
from regard.recorder.sources.structure_of_models.head_order import head_counts, leading_axes
from regard.support.torch_internals import function_modes

Hear = Callable[[EagerAttention], Tensor | None]
"""Receives an attention; returns what the product returns instead, or None for its own result."""


def run_traced(hear: Hear, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a module's `forward` in an `EagerTrace`. The modes of a thread are a stack: one is enough."""
    is_on = any(isinstance(mode, EagerTrace) for mode in function_modes())  # type: ignore[no-untyped-call]
    with nullcontext() if is_on else EagerTrace(hear):
        return run_and_disown(forward, *args, **kwargs)


def _query_label(product: Product, own: tuple[str, ...], key: str) -> tuple[str, bool]:
    """Return which of an operand's own axes counts the queries, and whether that is known; `key` the keys'.

    There are two where all heads share their keys, (B, T, H, D) × (B, S, D): the other one has as many
    entries as the module names heads, or this one as many as there are keys.
    """
    if len(own) == 1:
        return own[0], True
    sizes, counts = product.sizes, head_counts(calling_module())
    unnamed = [label for label in own if sizes[label] not in counts]
    as_keys = [label for label in own if sizes[label] == sizes[key]]
    for candidates in (unnamed, as_keys):
        if len(own) == 2 and len(candidates) == 1:
            return candidates[0], True
    return own[-1], False


class EagerTrace(AttentionMode):
    """Follows the scores and weights of the attention that is computed inside it."""

    def __init__(self, hear: Hear) -> None:
        super().__init__()
        self.hear = hear
        # By identity, since tensors compare entry by entry; weak, since nothing that the model frees is to
        # stay.
        self.scores: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.weights: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.constants: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.stacked: WeakIdKeyDictionary = WeakIdKeyDictionary()
        """Tensors that were concatenated along their first axis, from how many."""
        self.mixed: WeakIdKeyDictionary = WeakIdKeyDictionary()
        """Products with weights, and what is made of them without a parameter: the module of the product."""

    def follow(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a function, and note what its result is to the scores and weights that are known."""
        name = _name(func)
        # What the softmax returned is compared with what is multiplied: SEW-D fills some with 0 in place.
        if args and isinstance(args[0], Tensor) and args[0] in self.weights and _writes(func):
            self._copy_weights(args[0])
        output = func(*args, **kwargs)
        tensors = _tensors_among(args, kwargs)
        # Heads that are put in front of texts in this way have the axis of texts.
        if name in CONCATENATING and kwargs.get("dim", args[1] if len(args) > 1 else 0) == 0:
            self.stacked[output] = len(tensors)
        if name in PRODUCTS and isinstance(output, Tensor):
            product = read_product(name, args, kwargs)
            if product is not None and product.is_plain:
                return self._product(product, output)
        if any(x in self.weights for x in tensors):
            self._follow_weights(func, name, args, kwargs, tensors, output)
        elif name == "softmax" and isinstance(output, Tensor) and tensors:
            self._softmax(tensors[0], output, args, kwargs)
        elif any(x in self.scores for x in tensors):
            for x in _tensors_in(output):
                self.scores[x] = self._scores_after(func, name, args, kwargs, x)
        # After a projection they may be the values of the next attention.
        elif (module := self._mixer_of(tensors)) is not None:
            for x in _tensors_in(output):
                self.mixed[x] = module
        elif tensors and all(self._is_constant(x) for x in tensors):
            for x in _tensors_in(output):
                self.constants[x] = True
        return output

    def _is_constant(self, x: Tensor) -> bool:
        """Whether a tensor is a parameter, or made of nothing but parameters."""
        return _is_parameter(x) or x in self.constants

    def _mixer_of(self, tensors: list[Tensor]) -> nn.Module | None:
        """Return the module that multiplied one of some tensors with weights; None beside a parameter."""
        module: nn.Module | None = next((self.mixed[x] for x in tensors if x in self.mixed), None)
        return None if module is None or any(map(_is_parameter, tensors)) else module

    # Products.

    def _product(self, product: Product, output: Tensor) -> Tensor:
        """Follow a product: of weights and values, or of what may be queries and keys."""
        if product.left in self.weights or product.right in self.weights:
            is_left = product.left in self.weights
            output = self._multiply_values(product if is_left else product.reversed(), output)
            self.mixed[output] = calling_module()
            return output
        operands = [product.left, product.right]
        if (module := self._mixer_of(operands)) is not None:
            self.mixed[output] = module
        before = next((self.scores[x] for x in operands if x in self.scores), None)
        if before is not None:
            self.scores[output] = before.unknown
        elif product.left.is_floating_point() and product.right.is_floating_point():
            scores = self._new_scores(product)
            if scores is not None:
                self.scores[output] = scores
        return output

    def _new_scores(self, product: Product) -> Scores | None:
        """Return the result of a product as scores, or None if it cannot be scores."""
        own_left, own_right = product.own_labels()
        if not own_left or not own_right or not product.summed:
            return None
        if any(_is_parameter(x) for x in product[:2]):  # a projection
            return None
        x, _ = _query_label(product, own_left, own_right[-1])
        y, _ = _query_label(product, own_right, own_left[-1])
        lead = [label for label in product.labels if label not in (x, y)]
        width = len(product.summed)
        left = arrange(product.left, product.left_labels, [*lead, x, *product.summed]).flatten(-width)
        right = arrange(product.right, product.right_labels, [*lead, y, *product.summed]).flatten(-width)
        axes = tuple(product.labels.index(label) for label in (*lead, x, y))
        constant = (self._is_constant(product.left), self._is_constant(product.right))
        terms = () if product.added is None else (product.added,)
        return Scores(left, right, axes, product.factor, None, terms, constant)

    def _multiply_values(self, product: Product, output: Tensor) -> Tensor:
        """Take a product of weights, on the left, and values."""
        # Weights times weights are no output yet, as between the factors of Nyström attention.
        if product.right in self.weights or product.right in self.scores:
            return output
        weights: Weights = self.weights[product.left]
        own, width = product.own_labels()
        if not own or not width or len(product.summed) != 1 or product.added is not None:
            return output
        (s,) = product.summed
        t, is_told = _query_label(product, own, s)
        lead = [label for label in product.left_labels if label not in (t, s)]
        order = [*lead, t, *width]
        widths = [output.shape[product.labels.index(label)] for label in width]

        def restore(x: Tensor) -> Tensor:
            x = x.reshape(*x.shape[:-1], *widths)
            return x.permute([order.index(label) for label in product.labels])

        part = weights.part
        used = arrange(product.left, product.left_labels, [*lead, t, s])
        v = arrange(product.right, product.right_labels, [*lead, s, *width]).flatten(-len(width))
        is_ordered = product.right_labels[: len(lead)] == tuple(lead)
        attention = EagerAttention(
            weights=weights,
            used=used,
            unchanged=None
            if part is None
            else arrange(part.reshape(product.left.shape), product.left_labels, [*lead, t, s]),
            v=v,
            output=arrange(output, product.labels, order).flatten(-len(width)),
            modules=_common(weights.modules, _modules()),
            is_composed=self._is_composed(product.right),
            stacked=int(self.stacked.get(product.right, 0)),  # type: ignore[no-untyped-call]
            leading_axes=leading_axes(product.right if is_ordered else v),
            is_told=is_told,
            restore=restore,
        )
        edited = self.hear(attention)
        return output if edited is None else edited.to(output.dtype)

    def _is_composed(self, values: Tensor) -> bool:
        """Whether values are a product with weights of the module that runs, of one around it or inside it.

        The output of any other module is the text that this one reads, as in a stack without projections.
        """
        module, here = self._mixer_of([values]), _modules()
        return module is not None and (module in here or (bool(here) and module in set(here[-1].modules())))

    # Softmax.

    def _softmax(self, x: Tensor, output: Tensor, args: Any, kwargs: dict[str, Any]) -> None:
        """Follow a softmax of scores."""
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if not isinstance(dim, int) or x not in self.scores:
            return
        scores: Scores = self.scores[x]
        if scores.is_known:
            axis = scores.axes.index(dim % x.ndim) - x.ndim  # in (…, X, Y)
            # Over a batch, or over parameters alone, it is a choice among things that are no tokens.
            if axis < -2 or scores.constant[axis]:
                return
            scores = scores if axis == -1 else scores.reversed()
        self.weights[output] = Weights(scores, output, output, write_count(output), _modules())

    def _copy_weights(self, x: Tensor) -> None:
        """Copy weights that are about to be written to."""
        weights: Weights = self.weights[x]
        copy = x.detach().clone()
        is_whole = x is weights.whole
        self.weights[x] = dataclasses.replace(
            weights,
            whole=copy if is_whole else weights.whole,
            part=copy if weights.part is x else None,
            count=write_count(copy) if is_whole else weights.count,
        )

    def _follow_weights(
        self, func: Any, name: str, args: Any, kwargs: dict[str, Any], tensors: list[Tensor], output: Any
    ) -> None:
        """Follow a function of weights."""
        x = next(x for x in tensors if x in self.weights)
        weights: Weights = self.weights[x]
        results = list(_tensors_in(output))
        part = weights.part
        parts: Iterable[Tensor | None]
        if part is None:
            parts = [None for _ in results]
        elif name in RESHAPING:
            parts = [part.reshape(y.shape) for y in results]
        elif name in PERMUTING | SELECTING and x is args[0]:
            parts = _tensors_in(func(part, *args[1:], **kwargs))
        elif name == "einsum" and len(args) == 2:
            parts = [func(args[0], part)]
        else:
            parts = [part if y.shape == part.shape else None for y in results]
        problem = weights.problem
        if name == "dropout" and kwargs.get("training", args[2] if len(args) > 2 else True):
            p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
            problem = dropout_problem(p) or problem
        for y, part in zip(results, parts, strict=False):
            if y.is_floating_point():
                self.weights[y] = dataclasses.replace(weights, part=part, problem=problem)

    # Scores.

    def _scores_after(
        self, func: Any, name: str, args: Any, kwargs: dict[str, Any], output: Tensor
    ) -> Scores:
        """Return what is known of scores after a function of them."""
        tensors = _tensors_among(args, kwargs)
        x = next(x for x in tensors if x in self.scores)
        scores: Scores = self.scores[x]
        position = next((i for i, argument in enumerate(args) if argument is x), None)
        if not scores.is_known or position is None:
            return scores.unknown
        others = [x for i, x in enumerate(args) if i != position] + list(kwargs.values())
        try:
            after = next_scores(scores, func, name, args, kwargs, position, others, output)
        # A spelling that is not read here costs the queries and keys, never the model's run.
        except (RuntimeError, ValueError, IndexError, TypeError):
            after = None
        return scores.unknown if after is None else after


def _name(func: Any) -> str:
    """Return the name of a torch function: without the marks of operators and of writing in place."""
    name = function_name(func)
    # `x.T` and `x.mT` are attributes, whose function is a getter.
    if name == "__get__":
        name = getattr(getattr(func, "__self__", None), "__name__", "")
    if name in PRODUCTS or name == "__getitem__":
        return name
    name = name.strip("_")
    return OPERATORS.get(name, name)


OPERATORS = {
    **{f"{mark}{name}": name for name in ("add", "sub", "mul") for mark in ("i", "r")},
    **dict.fromkeys(("truediv", "itruediv", "true_divide", "divide", "idiv"), "div"),
    "multiply": "mul",
    "subtract": "sub",
    "special_softmax": "softmax",
}
"""The names of functions that are the same as others."""


def _tensors_in(output: Any) -> Iterable[Tensor]:
    """Return the tensors in a function's result."""
    if isinstance(output, Tensor):
        return (output,)
    return [x for x in output if isinstance(x, Tensor)] if isinstance(output, tuple | list) else ()


def _tensors_among(args: Any, kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the tensors among a function's arguments, also those in lists, as of `torch.cat`."""
    return [x for argument in (*args, *kwargs.values()) for x in _tensors_in(argument)]


def _is_parameter(x: Tensor) -> bool:
    """Whether a tensor is a parameter or a view of one."""
    return isinstance(x, nn.Parameter) or isinstance(x._base, nn.Parameter)


def _writes(func: Any) -> bool:
    """Whether a function writes to its first argument, by its name."""
    name = function_name(func)
    return name.startswith(("__i", "__setitem")) or (name.endswith("_") and not name.endswith("__"))


def _modules() -> tuple[nn.Module, ...]:
    """Return the modules whose code is running, the outermost first."""
    return tuple(calling_modules())[::-1]


def _common(first: tuple[nn.Module, ...], second: tuple[nn.Module, ...]) -> tuple[nn.Module, ...]:
    """Return the modules in which two calls were made, the outermost first."""
    return tuple(a for a, b in zip(first, second, strict=False) if a is b)
