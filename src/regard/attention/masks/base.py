"""`Mask`: what every mask can be asked, and masks combined with `&`, `|` and `~`.

A mask is a predicate of positions (see `tile_predicate`).

Whatever the rest of the package has to know about a mask (its window, its conjuncts, the same mask for other
heads or for more tokens) is a method of `Mask` with a safe default. A new mask is therefore taught in one
place: its own class. The masks with a name (`causal`, `window`, …) are in `named_masks`, those that show part
of another mask in `views`, and positions in `grid`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from regard.attention.masks.grid import Band, always, full_shape, one_block
from regard.attention.masks.grid import Blocks as Blocks
from regard.attention.masks.grid import Grid as Grid
from regard.attention.masks.grid import grid as grid
from regard.attention.masks.tile_predicate import TilePredicate

Index = slice | Sequence[int] | Tensor
"""Some sequences of a batch, or some heads: a slice, or their numbers in any order."""


class Mask(TilePredicate):
    """Tells, for every query and key, whether the key is visible to the query.

    A mask may also add a number to the score (`tensor_mask` of a float tensor, `alibi`); it is then `biased`.

    A subclass implements `allowed`, and `select` and `shape_error` if it holds tensors. Every other method
    has a default that is correct for any mask. Write `class MyMask(Mask, stored=True)` for a dataclass of
    numbers, tensors and masks that saved files may hold.
    """

    biased: bool = False
    """Whether the mask adds numbers to the scores."""
    hides: bool = True
    """Whether it may hide a key; False for `full` and for a bias that every key has, such as `alibi`."""
    trainable: bool = False
    """Whether what it adds to the scores requires a gradient."""
    is_causal: bool = False
    """Whether the mask is `causal` or `causal.top_left`, alone or joined with others by `&`."""
    is_padding: bool = False
    """Whether the mask hides padding and nothing else."""
    is_documents: bool = False
    """Whether the mask hides other documents and nothing else."""
    translation_invariant: bool = False
    """Whether visibility and bias depend on the distance between query and key alone."""
    positional: bool = False
    """Whether the class and numbers of the mask say all: it holds no tensor and no function, and shows
    the same keys to every sequence and head."""
    precedence: int = 3
    """How tightly its printed form binds: 3 for a name and `~`, 2 for `&`, 1 for `|`."""
    head_axes: ClassVar[dict[str, int]] = {}
    """The fields that are tensors with an entry for each head, or one entry for all, and their axis."""
    stored_classes: ClassVar[dict[str, type[Mask]]] = {}
    """The classes that saved files may hold, by name."""

    def __init_subclass__(cls, *, stored: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if stored:
            Mask.stored_classes[cls.__name__] = cls

    def picture_shape(self) -> tuple[int, int]:
        """The numbers of queries and keys that a picture of the mask shows: its own, or enough to see it."""
        shapes = [child.picture_shape() for child in self.children()] or [(32, 32)]
        fitting = [shape for shape in shapes if self.shape_error(None, None, *shape) is None]
        return max(fitting or shapes)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return what a notebook shows: a picture, and the mask as text."""
        from regard.attention.masks.plot import mask_output

        return mask_output(self)

    def plot(self, T: int, S: int | None = None, *, ax: Any = None) -> Any:
        """Draw the mask of T queries and S keys (T if None) on Matplotlib axes `ax`, or on new ones.

        Returns the Matplotlib figure.
        """
        from regard.attention.masks.plot import draw_mask

        return draw_mask(self, T, T if S is None else S, ax=ax)

    def __and__(self, other: Mask) -> Mask:
        """`mask & other`: a key is visible if both masks allow it; their biases are added."""
        return And(self, _operand(other, "&"))

    def __or__(self, other: Mask) -> Mask:
        """`mask | other`: a key is visible if at least one of the masks allows it."""
        return Or(self, _operand(other, "|"))

    def __invert__(self) -> Mask:
        """`~mask`: a key is visible if the mask hides it."""
        return Not(self)

    def __bool__(self) -> bool:
        """Refused: `and`, `or` and `not` would choose one of two masks and drop the other."""
        raise TypeError("a mask is neither true nor false: join masks with & and |, and write ~ for not")

    @property
    def asks_function(self) -> bool:
        """Whether it asks a function of the user's about every entry."""
        return any(child.asks_function for child in self.children())

    def simplified(self, shape: tuple[int, ...]) -> Mask:
        """The same mask for attention of this shape, without the parts that allow everything there."""
        _, every = self.block_bounds(one_block(*full_shape(shape)[2:]))
        return full if not self.biased and bool(every.all()) else self

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        return next(filter(None, (child.shape_error(B, H, T, S) for child in self.children())), None)

    # The structure of a mask.

    def children(self) -> tuple[Mask, ...]:
        """The masks that this one is made of."""
        return ()

    def with_children(self, *children: Mask) -> Mask:
        """The same mask made of other children, as many as `children()` returns."""
        return self

    def conjuncts(self) -> list[Mask]:
        """The masks that `&` joins in this one, without `full`.

        >>> from regard import causal, full, window
        >>> (causal & (full & window(8))).conjuncts()
        [causal, window(8)]
        """
        return [self]

    def window_size(self) -> int | None:
        """How many keys back a query sees, its own included, or None if no window limits that.

        >>> from regard import causal, window
        >>> (causal & window(8) & window(4)).window_size()
        4
        """
        return None

    def band(self, T: int, S: int) -> Band | None:
        """The band around the diagonal that the mask is for T queries and S keys, or None if it is not one.

        >>> from regard import causal, prefix, window
        >>> (causal & window(128)).band(512, 512)
        Band(behind=127, ahead=0)
        >>> (causal | prefix(4)).band(512, 512) is None
        True
        """
        return None

    def split_alibi(self) -> tuple[Mask, Tensor | None]:
        """The mask without its linear bias, and the slopes (H,) of that bias, or None if it has none."""
        return self, None

    def first_position(self, T: int, S: int) -> int:
        """The position of the first of T queries among S keys."""
        return S - T

    def key_padding(self, S: int) -> Tensor | None:
        """Which of S keys are tokens, boolean (B, S), if `is_padding`; otherwise None."""
        return None

    def is_storable(self) -> bool:
        """Whether a saved file can hold the mask: it and its children are of `stored_classes`."""
        known = self.stored_classes.get(type(self).__name__) is type(self)
        return known and all(child.is_storable() for child in self.children())

    # The same mask for other sequences, heads or tokens.

    def select(self, batch: Index, heads: Index) -> Mask:
        """The mask for some sequences of the batch and some heads, numbered from 0 again in this order."""
        children = self.children()
        selected = tuple(child.select(batch, heads) for child in children)
        unchanged = all(new is old for new, old in zip(selected, children, strict=True))
        return self if unchanged else self.with_children(*selected)

    def restrict(self, other: Mask) -> Mask:
        """This mask & `other`, where `other` counts positions as before rows or keys were selected."""
        return self & other

    def extend(self, new: Sequence[Mask], T: int, S: int) -> Mask | None:
        """The mask with T more tokens at the end, both queries and keys, or None if that cannot be told.

        `new` are the conjuncts of the mask that the T new queries had, over S keys.
        """
        return self if self.positional else None

    def append_document(self, n: int) -> Mask | None:
        """The mask with n more tokens that see only each other, or None if that cannot be told."""
        return None


def conjunction(masks: Iterable[Mask]) -> Mask:
    """Masks joined by `&`; `full` if there are none.

    >>> from regard import causal, window
    >>> conjunction([causal, window(8)]), conjunction([])
    (causal & window(8), full)
    """
    masks = list(masks)
    return functools.reduce(operator.and_, masks) if masks else full


def _operand(other: Mask, sign: str) -> Mask:
    if not isinstance(other, Mask):
        raise ValueError(
            f"{sign} joins two masks, got {type(other).__name__}: wrap a tensor in regard.tensor_mask(tensor)"
        )
    return other


def of_any(name: str) -> Any:
    """A property that is true if it is true of any mask inside."""
    return property(lambda mask: any(getattr(child, name) for child in mask.children()))


def of_all(name: str) -> Any:
    """A property that is true if it is true of every mask inside."""
    return property(lambda mask: all(getattr(child, name) for child in mask.children()))


@dataclass(frozen=True, repr=False)
class BinaryMask(Mask):
    """Two masks joined by an operator."""

    left: Mask
    right: Mask

    translation_invariant, positional = map(of_all, ("translation_invariant", "positional"))

    def children(self) -> tuple[Mask, ...]:
        return self.left, self.right

    def with_children(self, *children: Mask) -> Mask:
        return type(self)(*children)


@dataclass(frozen=True, repr=False)
class And(BinaryMask, stored=True):
    """A key is visible if both masks allow it; their biases are added."""

    precedence = 2
    biased, hides, trainable, is_causal = map(of_any, ("biased", "hides", "trainable", "is_causal"))

    def allowed(self, at: Grid) -> Tensor:
        return self.left.evaluate(at) & self.right.evaluate(at)

    def score_bias(self, at: Grid) -> Tensor | None:
        left, right = self.left.score_bias(at), self.right.score_bias(at)
        return right if left is None else left if right is None else left.double() + right

    def simplified(self, shape: tuple[int, ...]) -> Mask:
        left, right = self.left.simplified(shape), self.right.simplified(shape)
        return right if left is full else left if right is full else And(left, right)

    def conjuncts(self) -> list[Mask]:
        return self.left.conjuncts() + self.right.conjuncts()

    def window_size(self) -> int | None:
        left, right = self.left.window_size(), self.right.window_size()
        return right if left is None else left if right is None else min(left, right)

    def band(self, T: int, S: int) -> Band | None:
        left, right = self.left.band(T, S), self.right.band(T, S)
        return None if left is None or right is None else left & right

    def split_alibi(self) -> tuple[Mask, Tensor | None]:
        (left, a), (right, b) = self.left.split_alibi(), self.right.split_alibi()
        slopes = b if a is None else a if b is None else a + b
        return right if left is full else left if right is full else And(left, right), slopes

    def __repr__(self) -> str:
        return f"{_bracketed(self.left, self)} & {_bracketed(self.right, self)}"


@dataclass(frozen=True, repr=False)
class Or(BinaryMask, stored=True):
    """A key is visible if at least one of two unbiased masks allows it."""

    precedence = 1

    def __post_init__(self) -> None:
        _check_unbiased(self.left, "|")
        _check_unbiased(self.right, "|")

    def allowed(self, at: Grid) -> Tensor:
        return self.left.evaluate(at) | self.right.evaluate(at)

    def __repr__(self) -> str:
        return f"{self.left} | {self.right}"


@dataclass(frozen=True, repr=False)
class Not(Mask, stored=True):
    """A key is visible if an unbiased mask hides it."""

    inner: Mask
    translation_invariant, positional = map(of_all, ("translation_invariant", "positional"))

    def __post_init__(self) -> None:
        _check_unbiased(self.inner, "~")

    def children(self) -> tuple[Mask, ...]:
        return (self.inner,)

    def with_children(self, *children: Mask) -> Mask:
        return Not(*children)

    def allowed(self, at: Grid) -> Tensor:
        return ~self.inner.evaluate(at)

    def __repr__(self) -> str:
        return f"~{_bracketed(self.inner, self)}"


def _bracketed(mask: Mask, outer: Mask) -> str:
    """The printed form of a mask inside another one, in brackets where they are needed."""
    return f"({mask})" if mask.precedence < outer.precedence else str(mask)


def _check_unbiased(mask: Mask, sign: str) -> None:
    if mask.biased:
        raise ValueError(
            f"{sign} needs masks without a bias, but {mask} adds numbers to the scores: join it with &"
        )


@dataclass(frozen=True, repr=False)
class Full(Mask, stored=True):
    """Every key is visible to every query."""

    hides = False
    positional = True
    translation_invariant = True

    def allowed(self, at: Grid) -> Tensor:
        return always(at.q) & always(at.k)

    def conjuncts(self) -> list[Mask]:
        return []

    def band(self, T: int, S: int) -> Band | None:
        return Band()

    def __repr__(self) -> str:
        return "full"


full = Full()
