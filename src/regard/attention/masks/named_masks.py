"""The masks by name: `causal`, `window`, `prefix`, `chunks`, `padding`, `documents`, `rule` and others.

    causal & window(128)        causal | prefix(16)        padding([5, 9]) & ~chunks(4)

The classes here are the masks that follow from the positions of query and key alone. Each function checks its
arguments and makes a mask; its class says which keys that shows. A mask is not a matrix: it answers for any
tile (see `base`), and its printed form is the expression that makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.attention.masks.base import Mask, full
from regard.attention.masks.grid import Band, Grid, always
from regard.attention.masks.rule_mask import Predicate, Rule
from regard.attention.masks.tensor_masks import Alibi, Documents, Padding, TensorMask
from regard.attention.tensors import (
    FLOATS,
    WHOLE_NUMBERS,
    as_tensor,
    check_tensor,
    check_whole_numbers,
    is_transformed,
)


@dataclass(frozen=True, repr=False)
class Causal(Mask, stored=True):
    """A query sees its own position and earlier ones.

    The last query is aligned with the last key. `causal.top_left` aligns the first query with the first key,
    as PyTorch does, which differs when there are more keys than queries.
    """

    from_start: bool = False
    is_causal = True
    positional = True

    @property
    def top_left(self) -> Causal:
        """The causal mask that counts queries and keys from the same start."""
        return Causal(from_start=True)

    @property
    def translation_invariant(self) -> bool:  # type: ignore[override]
        return not self.from_start

    def allowed(self, at: Grid) -> Tensor:
        return at.k <= (at.q - (at.S - at.T) if self.from_start else at.q)

    def simplified(self, shape: tuple[int, ...]) -> Mask:
        # Over as many queries as keys both alignments are the same, and backends know `causal` by identity.
        plain = causal if shape[-1] == shape[-2] else self
        return Mask.simplified(plain, shape)

    def band(self, T: int, S: int) -> Band | None:
        return Band(ahead=T - S if self.from_start else 0)

    def __repr__(self) -> str:
        return "causal.top_left" if self.from_start else "causal"


@dataclass(frozen=True, repr=False)
class SizedMask(Mask):
    """A mask that one length determines."""

    size: int
    positional = True

    def picture_shape(self) -> tuple[int, int]:
        # 256 is the most that a notebook's picture draws.
        side = min(max(32, 3 * self.size), 256)
        return side, side

    def __repr__(self) -> str:
        return f"{type(self).__name__.lower()}({self.size})"


@dataclass(frozen=True, repr=False)
class Window(SizedMask, stored=True):
    """A query sees the `size` latest keys, its own included, and `ahead` later ones (None: all)."""

    ahead: int | None = None
    translation_invariant = True

    def allowed(self, at: Grid) -> Tensor:
        near = at.k > at.q - self.size
        return near if self.ahead is None else near & (at.k <= at.q + self.ahead)

    def window_size(self) -> int | None:
        return self.size

    def band(self, T: int, S: int) -> Band | None:
        return Band(self.size - 1, self.ahead)

    def __repr__(self) -> str:
        return super().__repr__() if self.ahead is None else f"window({self.size}, ahead={self.ahead})"


@dataclass(frozen=True, repr=False)
class Prefix(SizedMask, stored=True):
    """Every query sees the first `size` keys."""

    def allowed(self, at: Grid) -> Tensor:
        return always(at.q) & (at.k < self.size)


@dataclass(frozen=True, repr=False)
class Chunks(SizedMask, stored=True):
    """A query sees the keys of its own chunk; positions are cut into chunks of `size`."""

    def __post_init__(self) -> None:
        check_whole_number("chunks(n)", self.size)

    def allowed(self, at: Grid) -> Tensor:
        return at.q // self.size == at.k // self.size


@dataclass(frozen=True, repr=False)
class Rectangle(Mask, stored=True):
    """The edges between the queries first_row … last_row and the keys first_key … last_key, by position."""

    first_row: int
    last_row: int
    first_key: int
    last_key: int

    def allowed(self, at: Grid) -> Tensor:
        rows = (at.q >= self.first_row) & (at.q <= self.last_row)
        return rows & (at.k >= self.first_key) & (at.k <= self.last_key)

    def __repr__(self) -> str:
        rows = f"queries {self.first_row} to {self.last_row}"
        return f"rectangle({rows}, keys {self.first_key} to {self.last_key})"


causal = Causal()


def window(n: int, ahead: int | None = None) -> Mask:
    """A sliding window: a query sees the `n` latest keys, its own included, k > q − n.

    With `ahead=m` it sees at most `m` keys after its own, k ≤ q + m; without, all of them.

    >>> (causal & window(2)).to_dense(4).int()
    tensor([[1, 0, 0, 0],
            [1, 1, 0, 0],
            [0, 1, 1, 0],
            [0, 0, 1, 1]], dtype=torch.int32)
    """
    size = check_whole_number("window(n)", n)
    return Window(size, None if ahead is None else check_whole_number("window(ahead=m)", ahead, 0))


def prefix(n: int) -> Mask:
    """Every query sees the first `n` keys; `causal | prefix(n)` is the mask of a prefix language model."""
    return Prefix(check_whole_number("prefix(n)", n, 0))


def chunks(n: int) -> Mask:
    """A query sees the keys of its own chunk of `n` positions."""
    return Chunks(check_whole_number("chunks(n)", n))  # as an int, which NumPy's is not


def padding(lengths_or_mask: Sequence[int] | Tensor) -> Mask:
    """Padding is hidden from every query.

    `lengths_or_mask` holds the number of tokens of each sequence, (B,), with the padding after them; or it
    marks the keys that are tokens with True, boolean (B, S), as the `attention_mask` of Transformers does
    with 1.

    >>> padding([1, 3]).to_dense(3)[:, 0, 0]
    tensor([[ True, False, False],
            [ True,  True,  True]])
    """
    expected = "whole lengths (B,) or a boolean (B, S) tensor, True for tokens"
    table = as_tensor("padding", lengths_or_mask, expected)
    if table.ndim == 2 and table.dtype == torch.bool:
        return Padding(table)
    if table.ndim == 1 and table.dtype in WHOLE_NUMBERS:
        if len(table) and int(table.min()) < 0:
            raise ValueError(f"padding: expected lengths of at least 0, got {int(table.min())}")
        return Padding(table)
    raise ValueError(
        f"padding: expected {expected}, "
        f"got {tuple(table.shape)} {table.dtype}" + (": pass .bool()" if table.ndim == 2 else "")
    )


def documents(ids: Sequence[int] | Tensor) -> Mask:
    """A query sees the keys of its own document: `ids` numbers the document of each key, (S,) or (B, S).

    >>> documents([0, 0, 1]).to_dense(3).int()
    tensor([[1, 1, 0],
            [1, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """
    ids = check_whole_numbers("documents", ids, "whole ids (S,) or (B, S)")
    if ids.ndim not in (1, 2):
        raise ValueError(f"documents: expected whole ids (S,) or (B, S), got {tuple(ids.shape)} {ids.dtype}")
    return Documents(ids if ids.ndim == 2 else ids[None])


def rule(predicate: Predicate) -> Mask:
    """A mask of your own: key k is visible to query q where `predicate(b, h, q, k)` is True.

    The predicate gets four index tensors that broadcast (batch, head, query position, key) and returns a
    boolean tensor. As FlexAttention's `mask_mod`, it is pure: it computes each entry of its answer from the
    indices of that entry and from numbers and tensors that it reads (in its closure, globals and defaults),
    it draws no random numbers, and it changes nothing. It is asked once about an entry, and again if a number
    or a tensor that it reads has changed; one that reads objects of other kinds, as a list, is asked in every
    call. What it reads stays the same until a backward pass has run, and for as long as a map with this mask
    is used. If it is written with arithmetic, comparisons and `& | ~` on q and k, it also tells which blocks
    of the matrix are empty or full, and these are skipped as under a mask with a name.

    >>> rule(lambda b, h, q, k: (q - k) % 2 == 0).to_dense(3).int()
    tensor([[1, 0, 1],
            [0, 1, 0],
            [1, 0, 1]], dtype=torch.int32)
    """
    if not callable(predicate):
        raise ValueError(f"rule: expected a function of (b, h, q, k), got {type(predicate).__name__}")
    return Rule(predicate)


def tensor_mask(tensor: Tensor) -> Mask:
    """A mask from a tensor that broadcasts to (B, H, T, S): True is visible, floats are added to scores."""
    if not isinstance(tensor, Tensor):
        raise ValueError(f"mask: expected a tensor or a mask, got {type(tensor).__name__}")
    check_tensor("mask", tensor)
    if tensor.ndim > 4:
        raise ValueError(f"mask: expected at most 4 dimensions (B, H, T, S), got {tuple(tensor.shape)}")
    if tensor.dtype != torch.bool and tensor.dtype not in FLOATS:
        raise ValueError(
            f"mask: expected booleans (True = visible) or floats (added to the scores), got {tensor.dtype}: "
            "pass .bool() if 1 means visible"
        )
    # A mask of 0 and 1 as Hugging Face's attention_mask, in floats, would be added and hide nothing.
    if tensor.dtype in FLOATS and tensor.numel() and _looks_boolean(tensor.detach()):
        raise ValueError(
            "mask: a float mask is added to the scores, but this one holds only 0 and 1, which is ambiguous: "
            "pass .bool() if 1 means visible"
        )
    return TensorMask(tensor.view((1,) * (4 - tensor.ndim) + tensor.shape))


def _looks_boolean(tensor: Tensor) -> bool:
    """Whether all numbers are 0 or 1 and some are 1; False inside torch.func, where no number can be read."""
    if is_transformed(tensor):
        return False
    ones = tensor == 1
    return bool(ones.any()) and bool((ones | (tensor == 0)).all())


def alibi(heads: int) -> Mask:
    """Attention with linear biases: slopes 2^(−8/H), 2^(−16/H), … as published, for any number of heads."""
    # On the CPU also under torch.set_default_device: a mask is moved to where it is asked for.
    return Alibi(torch.tensor(alibi_slopes(check_whole_number("alibi(heads)", heads)), device="cpu"))


def alibi_slopes(heads: int) -> list[float]:
    """The published slopes; between powers of two, every other slope of the next one fills the gap."""
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    return slopes if power == heads else slopes + alibi_slopes(2 * power)[::2][: heads - power]


def causal_mask(n: int) -> Tensor:
    """The causal mask of `n` tokens as a boolean tensor (n, n), True in the lower triangle.

    >>> causal_mask(3)
    tensor([[ True, False, False],
            [ True,  True, False],
            [ True,  True,  True]])
    """
    return causal.to_dense(check_whole_number("causal_mask(n)", n, 0))


def as_mask(mask: Mask | Tensor | None) -> Mask:
    """A `mask=` argument as a `Mask`: None is `full`, and a tensor becomes a `tensor_mask`."""
    if mask is None:
        return full
    return mask if isinstance(mask, Mask) else tensor_mask(mask)
