"""The masks by name: `causal`, `window`, `prefix`, `chunks`, `padding`, `documents`, `rule` and others.

    causal & window(128)        causal | prefix(16)        padding([5, 9]) & ~chunks(4)

Each is a class, which says which keys are visible, and a function, which checks its arguments. A mask is not
a matrix: it answers for any tile (see `base`), and its printed form is the expression that makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.arguments import check_whole_number
from regard.attention.masks.bands import Band
from regard.attention.masks.base import Index, Mask, full
from regard.attention.masks.grid import Blocks, Grid, extremes
from regard.attention.masks.pure import reads_positions_only
from regard.attention.tensors import (
    FLOATS,
    WHOLE_NUMBERS,
    as_tensor,
    check_tensor,
    check_whole_numbers,
    is_transformed,
)

Predicate = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""A function of index tensors (b, h, q, k) that broadcast, which returns a boolean tensor."""
SomeMask = TypeVar("SomeMask", bound=Mask)


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

    def _shift(self, at: Grid | Blocks) -> int:
        return at.S - at.T if self.from_start else 0

    def allowed(self, at: Grid) -> Tensor:
        return at.k <= at.q - self._shift(at)

    def block_bounds(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        shift = self._shift(blocks)
        return blocks.k_first <= blocks.q_last - shift, blocks.k_last <= blocks.q_first - shift

    def simplified(self, shape: tuple[int, ...]) -> Mask:
        plain = causal if shape[-1] == shape[-2] else self
        return Mask.simplified(plain, shape)

    def band(self, T: int, S: int) -> Band | None:
        return Band(ahead=T - S if self.from_start else 0)

    def newest_sees(self, n: int) -> bool:
        return not self.from_start

    def extend(self, new: Sequence[Mask], T: int, S: int) -> Mask | None:
        return self

    def __repr__(self) -> str:
        return "causal.top_left" if self.from_start else "causal"


@dataclass(frozen=True, repr=False)
class Window(Mask, stored=True):
    """A query sees the `size` latest keys, its own included, and `ahead` later ones (None: all)."""

    size: int
    ahead: int | None = None
    positional = True
    translation_invariant = True

    def picture_shape(self) -> tuple[int, int]:
        return _enough_for(self.size)

    def allowed(self, at: Grid) -> Tensor:
        near = at.k > at.q - self.size
        return near if self.ahead is None else near & (at.k <= at.q + self.ahead)

    def block_bounds(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        q_first, q_last, k_first, k_last = blocks[:4]
        some, every = k_last > q_first - self.size, k_first > q_last - self.size
        if self.ahead is not None:
            some, every = some & (k_first <= q_last + self.ahead), every & (k_last <= q_first + self.ahead)
        return some, every

    def window_size(self) -> int | None:
        return self.size

    def band(self, T: int, S: int) -> Band | None:
        return Band(self.size - 1, self.ahead)

    def newest_sees(self, n: int) -> bool:
        return n <= self.size

    def extend(self, new: Sequence[Mask], T: int, S: int) -> Mask | None:
        return self

    def __repr__(self) -> str:
        return f"window({self.size})" if self.ahead is None else f"window({self.size}, ahead={self.ahead})"


@dataclass(frozen=True, repr=False)
class Prefix(Mask, stored=True):
    """Every query sees the first `size` keys."""

    size: int
    positional = True

    def picture_shape(self) -> tuple[int, int]:
        return _enough_for(self.size)

    def allowed(self, at: Grid) -> Tensor:
        return (at.k < self.size) & (at.q >= at.q)

    def block_bounds(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        rows = blocks.q_first >= blocks.q_first
        return rows & (blocks.k_first < self.size), rows & (blocks.k_last < self.size)

    def extend(self, new: Sequence[Mask], T: int, S: int) -> Mask | None:
        return self

    def __repr__(self) -> str:
        return f"prefix({self.size})"


@dataclass(frozen=True, repr=False)
class Chunks(Mask, stored=True):
    """A query sees the keys of its own chunk; positions are cut into chunks of `size`."""

    size: int
    positional = True

    def __post_init__(self) -> None:
        check_whole_number("chunks(n)", self.size)

    def picture_shape(self) -> tuple[int, int]:
        return _enough_for(self.size)

    def allowed(self, at: Grid) -> Tensor:
        return at.q // self.size == at.k // self.size

    def block_bounds(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        q_first, q_last, k_first, k_last = (edge // self.size for edge in blocks[:4])
        some = (q_first <= k_last) & (k_first <= q_last)
        return some, some & (q_first == q_last) & (k_first == k_last)

    def extend(self, new: Sequence[Mask], T: int, S: int) -> Mask | None:
        return self

    def __repr__(self) -> str:
        return f"chunks({self.size})"


@dataclass(frozen=True, repr=False, eq=False)
class Padding(Mask, stored=True):
    """Keys that are padding are hidden from every query."""

    lengths_or_mask: Tensor
    """How many tokens each sequence has, (B,), or which keys are tokens, boolean (B, S)."""
    is_padding = True

    @property
    def _by_length(self) -> bool:
        return self.lengths_or_mask.ndim == 1

    def key_padding(self, S: int) -> Tensor | None:
        if not self._by_length:
            return self.lengths_or_mask
        positions = torch.arange(S, device=self.lengths_or_mask.device)
        return positions < self.lengths_or_mask.unsqueeze(1)  # (B, S)

    def picture_shape(self) -> tuple[int, int]:
        given = self.lengths_or_mask
        S = int(given.max()) if self._by_length and given.numel() else given.shape[-1]
        return S, S

    def allowed(self, at: Grid) -> Tensor:
        table = self.lengths_or_mask.to(at.k.device)
        rows = at.q >= at.q
        if self._by_length:
            return rows & (at.k < table.view(-1, 1, 1, 1))
        return rows & table[:, None, None, at.cols]

    def block_bounds(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        rows = blocks.q_first >= blocks.q_first
        table = self.lengths_or_mask.to(blocks.k_first.device)
        if self._by_length:
            lengths = table.view(-1, 1, 1, 1)
            return rows & (blocks.k_first < lengths), rows & (blocks.k_last < lengths)
        least, most = extremes(table.byte(), blocks.k_first.flatten(), blocks.k_last.flatten())
        return rows & most[:, None, None].bool(), rows & least[:, None, None].bool()

    def simplified(self, shape: tuple[int, ...]) -> Mask:
        # The default would do, but a padded batch that is decoded asks this for every token and layer.
        table = self.lengths_or_mask
        hides_nothing = (table >= shape[-1]).all() if self._by_length else table.all()
        return full if bool(hides_nothing) else self

    def select(self, batch: Index, heads: Index) -> Mask:
        return Padding(_take(self.lengths_or_mask, 0, batch))

    def extend(self, new: Sequence[Mask], T: int, S: int) -> Mask | None:
        if self._by_length:
            return None
        is_token = next((mask.key_padding(S) for mask in new if mask.is_padding), None)
        tail = self.lengths_or_mask.new_ones(1, T) if is_token is None else is_token[:, -T:]
        return Padding(_append(self.lengths_or_mask, tail))

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        table = self.lengths_or_mask
        if B is not None and len(table) not in (1, B):
            return f"expected one entry for each of the {B} sequences in the batch, got {len(table)}" + (
                "; (X, T, D) is read as X heads of one sequence: add a heads axis with .unsqueeze(1)"
                if B == 1
                else ""
            )
        if not self._by_length and table.shape[1] != S:
            return f"expected a mark for each of the {S} keys, got {table.shape[1]}"
        return None

    def __repr__(self) -> str:
        table = self.lengths_or_mask
        if not self._by_length:
            return f"padding({_format_shape(table.shape)})"
        shown = ", ".join(str(n) for n in table[:4].tolist()) + (", …" if len(table) > 4 else "")
        return f"padding([{shown}])"


@dataclass(frozen=True, repr=False, eq=False)
class Documents(Mask, stored=True):
    """A query sees the keys of its own document."""

    ids: Tensor
    """The document of each key, (B, S)."""

    def picture_shape(self) -> tuple[int, int]:
        S = self.ids.shape[-1]
        return S, S

    def allowed(self, at: Grid) -> Tensor:
        ids = self.ids.to(at.k.device)
        q, k = ids[:, at.q.flatten()], ids[:, at.k.flatten()]  # (B, rows), (B, cols)
        return (q[:, :, None] == k[:, None, :])[:, None]

    def block_bounds(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        ids = self.ids.to(blocks.k_first.device)
        q_least, q_most = extremes(ids, blocks.q_first.flatten(), blocks.q_last.flatten())  # (B, R)
        k_least, k_most = extremes(ids, blocks.k_first.flatten(), blocks.k_last.flatten())  # (B, C)
        q_least, q_most = q_least[:, None, :, None], q_most[:, None, :, None]
        k_least, k_most = k_least[:, None, None, :], k_most[:, None, None, :]
        some = (q_least <= k_most) & (k_least <= q_most)
        return some, some & (q_least == q_most) & (k_least == k_most)

    def select(self, batch: Index, heads: Index) -> Mask:
        return Documents(_take(self.ids, 0, batch))

    def extend(self, new: Sequence[Mask], T: int, S: int) -> Mask | None:
        documents = _of_class(Documents, new)
        tail = documents[0].ids[:, -T:] if documents else self.ids[:, -1:].expand(-1, T)
        return Documents(_append(self.ids, tail))

    def append_document(self, n: int) -> Mask | None:
        return Documents(pad(self.ids, (0, n), value=int(self.ids.max()) + 1))

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        if B is not None and len(self.ids) not in (1, B):
            return f"expected ids for each of the {B} sequences in the batch, got {len(self.ids)}"
        if self.ids.shape[1] != S:
            return f"expected an id for each of the {S} keys, got {self.ids.shape[1]}"
        return f"expected no more queries than keys, got {T} queries and {S} keys" if T > S else None

    def __repr__(self) -> str:
        return f"documents({_format_shape(self.ids.shape)})"


@dataclass(frozen=True, repr=False, eq=False)
class Rule(Mask):
    """A key is visible if a function of batch, head, query and key says so."""

    predicate: Predicate
    selections: tuple[tuple[Index, Index], ...] = ()
    """The sequences and heads that were selected, one selection after another."""
    asks_function = True

    def allowed(self, at: Grid) -> Tensor:
        b, h = at.b, at.h
        for batch, heads in reversed(self.selections):
            b, h = _original_numbers(b, batch), _original_numbers(h, heads)
        answer = self.predicate(b, h, at.q, at.k)
        if not isinstance(answer, Tensor) or answer.dtype != torch.bool:
            got = answer.dtype if isinstance(answer, Tensor) else type(answer).__name__
            raise ValueError(
                f"mask {self}: expected a boolean tensor from the predicate, got {got}: "
                "write it with comparisons and & | ~ (not and, or, not) on its arguments"
            )
        tile = (len(at.b), at.h.shape[1], at.q.shape[2], at.k.shape[3])
        shape = (1,) * (4 - answer.ndim) + tuple(answer.shape)
        if len(shape) > 4 or any(size not in (1, full) for size, full in zip(shape, tile, strict=True)):
            raise ValueError(
                f"mask {self}: expected an answer that broadcasts to {tile}, got {tuple(answer.shape)}"
            )
        return answer.view(shape)

    def select(self, batch: Index, heads: Index) -> Mask:
        if (_is_unchanged(batch) and _is_unchanged(heads)) or reads_positions_only(self.predicate):
            return self
        batch, heads = (x if isinstance(x, slice | Tensor) else tuple(x) for x in (batch, heads))
        return Rule(self.predicate, (*self.selections, (batch, heads)))

    def __repr__(self) -> str:
        name = getattr(self.predicate, "__name__", type(self.predicate).__name__)
        return f"rule({name.strip('<>')})"


@dataclass(frozen=True, repr=False, eq=False)
class TensorMask(Mask, stored=True):
    """A tensor of booleans (True is visible), or of floats that are added to the scores (−inf hides)."""

    tensor: Tensor
    """(B or 1, H or 1, T or 1, S or 1)."""
    head_axes: ClassVar[dict[str, int]] = {"tensor": 1}

    @property
    def biased(self) -> bool:  # type: ignore[override]
        return self.tensor.dtype != torch.bool

    @property
    def trainable(self) -> bool:  # type: ignore[override]
        return self.tensor.requires_grad

    def _part(self, at: Grid) -> Tensor:
        tensor = self.tensor.to(at.k.device)
        tensor = tensor if tensor.shape[-2] == 1 else tensor[:, :, at.rows]
        return tensor if tensor.shape[-1] == 1 else tensor[..., at.cols]

    def picture_shape(self) -> tuple[int, int]:
        T, S = self.tensor.shape[-2:]
        return (T if T > 1 else S), (S if S > 1 else T)

    def allowed(self, at: Grid) -> Tensor:
        part = self._part(at)
        return part != -torch.inf if self.biased else part  # NaN is visible, so that it shows in the output

    def score_bias(self, at: Grid) -> Tensor | None:
        return self._part(at) if self.biased else None

    def select(self, batch: Index, heads: Index) -> Mask:
        return TensorMask(_take(_take(self.tensor, 0, batch), 1, heads))

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        sizes = zip(self.tensor.shape, (B, H, T, S), strict=True)
        if all(size == 1 or expected in (None, size) for size, expected in sizes):
            return None
        shape = (T, S) if B is None else (B, H, T, S)
        return f"expected a shape that broadcasts to {shape}, got {self._short_shape()}"

    def _short_shape(self) -> tuple[int, ...]:
        """The shape without leading ones."""
        sizes = tuple(self.tensor.shape)
        while len(sizes) > 2 and sizes[0] == 1:
            sizes = sizes[1:]
        return sizes

    def __repr__(self) -> str:
        return f"tensor_mask({_format_shape(self._short_shape())})"


@dataclass(frozen=True, repr=False, eq=False)
class Alibi(Mask, stored=True):
    """Every step of distance lowers the score by the slope of the head (Press 2022); every key is visible."""

    slopes: Tensor
    """(H,)."""
    head_axes: ClassVar[dict[str, int]] = {"slopes": 0}
    biased = True
    hides = False
    translation_invariant = True

    def allowed(self, at: Grid) -> Tensor:
        return full.allowed(at)

    def block_bounds(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        return full.block_bounds(blocks)

    def score_bias(self, at: Grid) -> Tensor:
        return -self.slopes.to(at.k.device).view(1, -1, 1, 1) * (at.q - at.k).abs()

    def split_alibi(self) -> tuple[Mask, Tensor | None]:
        return full, self.slopes

    def select(self, batch: Index, heads: Index) -> Mask:
        return Alibi(self.slopes[_on_device(heads, self.slopes)])

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        if H in (None, len(self.slopes)):
            return None
        return f"expected a slope for each of the {H} heads, got {len(self.slopes)}"

    def __repr__(self) -> str:
        return f"alibi({len(self.slopes)})"


@dataclass(frozen=True, repr=False, eq=False)
class Relative(Mask, stored=True):
    """A number for every head and distance is added to the scores, as in T5: table[h, zero + k − q]."""

    table: Tensor
    """(H or 1, distances); its first and last column also serve all distances beyond them."""
    zero: int
    """The column of distance 0."""
    head_axes: ClassVar[dict[str, int]] = {"table": 0}
    biased = True
    hides = False
    translation_invariant = True

    @property
    def trainable(self) -> bool:  # type: ignore[override]
        return self.table.requires_grad

    def allowed(self, at: Grid) -> Tensor:
        return full.allowed(at)

    def block_bounds(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        return full.block_bounds(blocks)

    def score_bias(self, at: Grid) -> Tensor:
        distance = (at.k - at.q + self.zero).clamp(0, self.table.shape[1] - 1)
        heads = at.h if len(self.table) > 1 else torch.zeros_like(at.h[:, :1])
        return self.table.to(at.k.device)[heads, distance]

    def select(self, batch: Index, heads: Index) -> Mask:
        return self if len(self.table) == 1 else Relative(_take(self.table, 0, heads), self.zero)

    def extend(self, new: Sequence[Mask], T: int, S: int) -> Mask | None:
        """The numbers of every distance that one of the two tables has; where both have it, the old ones."""
        others = _of_class(Relative, new)
        if len(others) != 1:
            return None
        (other,) = others
        distances, other_distances = self.table.shape[1], other.table.shape[1]
        before = max(other.zero - self.zero, 0)
        after = max((other_distances - other.zero) - (distances - self.zero), 0)
        left, right = other.table[:, :before], other.table[:, other_distances - after :]
        return Relative(torch.cat([left, self.table, right], 1), self.zero + before)

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        if len(self.table) == 1 or H in (None, len(self.table)):
            return None
        return f"expected numbers for each of the {H} heads, got {len(self.table)}"

    def __repr__(self) -> str:
        return f"relative({_format_shape(self.table.shape)})"


def _of_class(kind: type[SomeMask], masks: Iterable[Mask]) -> list[SomeMask]:
    return [mask for mask in masks if isinstance(mask, kind)]


def _on_device(index: Index, tensor: Tensor) -> Index:
    return index.to(tensor.device) if isinstance(index, Tensor) else index


def _take(tensor: Tensor, dim: int, index: Index) -> Tensor:
    """Part of a dimension, unless it has one entry, which serves all."""
    if tensor.shape[dim] == 1:
        return tensor
    return tensor[(slice(None),) * dim + (_on_device(index, tensor),)]


def _append(table: Tensor, tail: Tensor) -> Tensor:
    """Two tables (B or 1, n) joined along their last dimension."""
    B = max(len(table), len(tail))
    return torch.cat([table.expand(B, -1), tail.to(table.device).expand(B, -1)], 1)


def _original_numbers(numbers: Tensor, index: Index) -> Tensor:
    """The numbers that sequences or heads had before `index` selected some of them."""
    if not isinstance(index, slice):
        return torch.as_tensor(index, device=numbers.device)[numbers]
    step = 1 if index.step is None else index.step
    return (index.start or 0) + numbers * step


def _is_unchanged(index: Index) -> bool:
    """Whether sequences or heads have the same numbers after `index` selected some of them."""
    return isinstance(index, slice) and not index.start and index.step in (None, 1)


def _format_shape(shape: Sequence[int]) -> str:
    return "×".join(str(n) for n in shape)


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
    boolean tensor. It is asked about some entries at a time, so each answer follows from its own indices. A
    pure one, which does nothing but compute with its arguments, numbers, tensors and PyTorch's elementwise
    operations, is asked once, and again if a value that it reads has changed; any other function is asked in
    every call. What it reads stays the same until a backward pass has run, and for as long as a map with this
    mask is used.

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


def _enough_for(size: int) -> tuple[int, int]:
    """The shape of a picture in which something of this size is seen, and more."""
    side = min(max(32, 3 * size), 256)
    return side, side
