"""Who may look at whom: the mask rules by name.

    causal & window(128)        causal | prefix(16)        padding([5, 9]) & ~chunks(4)

A rule is not a matrix: it answers for any tile (see `rules`), and prints its own name.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.masks.base import Mask, full
from regard.attention.masks.grid import Blocks, Grid, extremes

Says = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, repr=False)
class Causal(Mask):
    """A query may look at its own position and at earlier ones.

    Aligned with the end of the keys. `causal.top_left` counts queries and keys from the same start, as
    PyTorch does, which differs when there are more keys than queries.
    """

    from_start: bool = False

    @property
    def top_left(self) -> Causal:
        return Causal(from_start=True)

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

    def __repr__(self) -> str:
        return "causal.top_left" if self.from_start else "causal"


@dataclass(frozen=True, repr=False)
class Window(Mask):
    size: int
    ahead: int | None = None

    def allowed(self, at: Grid) -> Tensor:
        near = at.k > at.q - self.size
        return near if self.ahead is None else near & (at.k <= at.q + self.ahead)

    def block_bounds(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        q_first, q_last, k_first, k_last = blocks[:4]
        some, every = k_last > q_first - self.size, k_first > q_last - self.size
        if self.ahead is not None:
            some, every = some & (k_first <= q_last + self.ahead), every & (k_last <= q_first + self.ahead)
        return some, every

    def __repr__(self) -> str:
        return f"window({self.size})" if self.ahead is None else f"window({self.size}, ahead={self.ahead})"


@dataclass(frozen=True, repr=False)
class Prefix(Mask):
    size: int

    def allowed(self, at: Grid) -> Tensor:
        return (at.k < self.size) & (at.q >= at.q)

    def block_bounds(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        rows = blocks.q_first >= blocks.q_first
        return rows & (blocks.k_first < self.size), rows & (blocks.k_last < self.size)

    def __repr__(self) -> str:
        return f"prefix({self.size})"


@dataclass(frozen=True, repr=False)
class Chunks(Mask):
    size: int

    def allowed(self, at: Grid) -> Tensor:
        return at.q // self.size == at.k // self.size

    def block_bounds(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        q_first, q_last, k_first, k_last = (edge // self.size for edge in blocks[:4])
        some = (q_first <= k_last) & (k_first <= q_last)
        return some, some & (q_first == q_last) & (k_first == k_last)

    def __repr__(self) -> str:
        return f"chunks({self.size})"


@dataclass(frozen=True, repr=False, eq=False)
class Padding(Mask):
    real: Tensor  # (B, S) boolean, or (B,) lengths

    def allowed(self, at: Grid) -> Tensor:
        real = self.real.to(at.k.device)
        rows = at.q >= at.q
        if real.ndim == 1:
            return rows & (at.k < real.view(-1, 1, 1, 1))
        return rows & real[:, None, None, at.cols]

    def block_bounds(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        rows = blocks.q_first >= blocks.q_first
        real = self.real.to(blocks.k_first.device)
        if real.ndim == 1:
            lengths = real.view(-1, 1, 1, 1)
            return rows & (blocks.k_first < lengths), rows & (blocks.k_last < lengths)
        least, most = extremes(real.byte(), blocks.k_first.flatten(), blocks.k_last.flatten())
        return rows & most[:, None, None].bool(), rows & least[:, None, None].bool()

    def simplified(self, shape: tuple[int, ...]) -> Mask:
        # As for any rule, in two operations: a padded batch that is decoded asks for every token and layer.
        nothing_hidden = self.real.all() if self.real.ndim == 2 else (self.real >= shape[-1]).all()
        return full if bool(nothing_hidden) else self

    def select(self, batch: slice, heads: slice) -> Mask:
        return Padding(_taken(self.real, 0, batch))

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        if B is not None and len(self.real) not in (1, B):
            return f"expected one entry for each of the {B} sequences in the batch, got {len(self.real)}" + (
                "; (X, T, D) is read as X heads of one sequence: add a heads axis with .unsqueeze(1)"
                if B == 1
                else ""
            )
        if self.real.ndim == 2 and self.real.shape[1] != S:
            return f"expected a mark for each of the {S} keys, got {self.real.shape[1]}"
        return None

    def __repr__(self) -> str:
        if self.real.ndim == 2:
            return f"padding({_by(self.real.shape)})"
        shown = ", ".join(str(n) for n in self.real[:4].tolist()) + (", …" if len(self.real) > 4 else "")
        return f"padding([{shown}])"


@dataclass(frozen=True, repr=False, eq=False)
class Documents(Mask):
    ids: Tensor  # (B, S)

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

    def select(self, batch: slice, heads: slice) -> Mask:
        return Documents(_taken(self.ids, 0, batch))

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        if B is not None and len(self.ids) not in (1, B):
            return f"expected ids for each of the {B} sequences in the batch, got {len(self.ids)}"
        if self.ids.shape[1] != S:
            return f"expected an id for each of the {S} keys, got {self.ids.shape[1]}"
        return f"expected no more queries than keys, got {T} queries and {S} keys" if T > S else None

    def __repr__(self) -> str:
        return f"documents({_by(self.ids.shape)})"


@dataclass(frozen=True, repr=False, eq=False)
class Rule(Mask):
    says: Says

    def allowed(self, at: Grid) -> Tensor:
        answer = self.says(at.b, at.h, at.q, at.k)
        if not isinstance(answer, Tensor) or answer.dtype != torch.bool:
            came = answer.dtype if isinstance(answer, Tensor) else type(answer).__name__
            raise ValueError(
                f"mask {self}: expected a boolean tensor from the rule, got {came}: "
                "write it with comparisons and & | ~ (not and, or, not) on its arguments"
            )
        wanted = (len(at.b), at.h.shape[1], at.q.shape[2], at.k.shape[3])
        shape = (1,) * (4 - answer.ndim) + tuple(answer.shape)
        if len(shape) > 4 or any(size not in (1, want) for size, want in zip(shape, wanted, strict=True)):
            raise ValueError(
                f"mask {self}: expected an answer that broadcasts to {wanted}, got {tuple(answer.shape)}"
            )
        return answer.view(shape)

    def select(self, batch: slice, heads: slice) -> Mask:
        (b0, _, b_step), (h0, _, h_step) = batch.indices(sys.maxsize), heads.indices(sys.maxsize)
        return Rule(renumbered(self.says, b0, b_step, h0, h_step))

    def __repr__(self) -> str:
        name = getattr(self.says, "__name__", type(self.says).__name__)
        return f"rule({name.strip('<>')})"


@dataclass(frozen=True, repr=False, eq=False)
class TensorMask(Mask):
    tensor: Tensor  # (B or 1, H or 1, T or 1, S or 1)

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

    def allowed(self, at: Grid) -> Tensor:
        part = self._part(at)
        return part != -torch.inf if self.biased else part  # NaN is let through, to be seen in the output

    def score_bias(self, at: Grid) -> Tensor | None:
        return self._part(at) if self.biased else None

    def select(self, batch: slice, heads: slice) -> Mask:
        return TensorMask(_taken(_taken(self.tensor, 0, batch), 1, heads))

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        wanted = zip(self.tensor.shape, (B, H, T, S), strict=True)
        if all(size == 1 or want in (None, size) for size, want in wanted):
            return None
        expected = (T, S) if B is None else (B, H, T, S)
        return f"expected a shape that broadcasts to {expected}, got {self._as_given()}"

    def _as_given(self) -> tuple[int, ...]:
        sizes = tuple(self.tensor.shape)
        while len(sizes) > 2 and sizes[0] == 1:
            sizes = sizes[1:]
        return sizes

    def __repr__(self) -> str:
        return f"dense({_by(self._as_given())})"


@dataclass(frozen=True, repr=False, eq=False)
class Alibi(Mask):
    """Every step of distance lowers the score by the head's own slope (Press 2022)."""

    slopes: Tensor  # (H,)
    biased = True

    def allowed(self, at: Grid) -> Tensor:
        return full.allowed(at)

    def block_bounds(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        return full.block_bounds(blocks)

    def score_bias(self, at: Grid) -> Tensor:
        return -self.slopes.to(at.k.device).view(1, -1, 1, 1) * (at.q - at.k).abs()

    def select(self, batch: slice, heads: slice) -> Mask:
        return Alibi(self.slopes[heads])

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        if H in (None, len(self.slopes)):
            return None
        return f"expected a slope for each of the {H} heads, got {len(self.slopes)}"

    def __repr__(self) -> str:
        return f"alibi({len(self.slopes)})"


@dataclass(frozen=True, repr=False, eq=False)
class Relative(Mask):
    """A number for every head and distance is added to the scores, as in T5: table[h, zero + k − q]."""

    table: Tensor  # (H or 1, distances); the ends stand for what lies beyond
    zero: int  # where distance 0 is
    biased = True

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

    def select(self, batch: slice, heads: slice) -> Mask:
        return self if len(self.table) == 1 else Relative(self.table[heads], self.zero)

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        if len(self.table) == 1 or H in (None, len(self.table)):
            return None
        return f"expected numbers for each of the {H} heads, got {len(self.table)}"

    def __repr__(self) -> str:
        return f"relative({_by(self.table.shape)})"


def renumbered(says: Says, b0: int, b_step: int, h0: int, h_step: int) -> Says:
    """A rule over sequences b0, b0 + b_step, … and heads h0, h0 + h_step, …, that keeps its name."""

    @functools.wraps(says)
    def inner(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return says(b0 + b * b_step, h0 + h * h_step, q, k)

    return inner


def _taken(tensor: Tensor, dim: int, part: slice) -> Tensor:
    """Part of a dimension, unless it is one entry that stands for all."""
    return tensor if tensor.shape[dim] == 1 else tensor[(slice(None),) * dim + (part,)]


def _by(shape: Sequence[int]) -> str:
    return "×".join(str(n) for n in shape)


causal = Causal()


def window(n: int, ahead: int | None = None) -> Mask:
    """The n latest keys up to and including the query's own: k > q − n; with `ahead=m` also k ≤ q + m.

    >>> (causal & window(2)).to_dense(4).int()
    tensor([[1, 0, 0, 0],
            [1, 1, 0, 0],
            [0, 1, 1, 0],
            [0, 0, 1, 1]], dtype=torch.int32)
    """
    return Window(_count("window(n)", n, 1), None if ahead is None else _count("window(ahead=m)", ahead, 0))


def prefix(n: int) -> Mask:
    """The first n keys, for every query; `causal | prefix(n)` is the mask of a prefix language model."""
    return Prefix(_count("prefix(n)", n, 0))


def chunks(n: int) -> Mask:
    """The keys of the query's own chunk of n."""
    return Chunks(_count("chunks(n)", n, 1))


def padding(lengths: Sequence[int] | Tensor) -> Mask:
    """Only real keys: the first `lengths[b]` of sequence b, or those marked True in a boolean (B, S) tensor.

    >>> padding([1, 3]).to_dense(3)[:, 0, 0]
    tensor([[ True, False, False],
            [ True,  True,  True]])
    """
    real = torch.as_tensor(lengths)
    if real.ndim == 2 and real.dtype == torch.bool:
        return Padding(real)
    if real.ndim == 1 and not real.dtype.is_floating_point and real.dtype != torch.bool:
        if len(real) and int(real.min()) < 0:
            raise ValueError(f"padding: expected lengths of at least 0, got {int(real.min())}")
        return Padding(real)
    raise ValueError(
        "padding: expected whole lengths (B,) or a boolean (B, S) tensor, True for real tokens, "
        f"got {tuple(real.shape)} {real.dtype}" + (": pass .bool()" if real.ndim == 2 else "")
    )


def documents(ids: Sequence[int] | Tensor) -> Mask:
    """Only keys of the query's own document: `ids` numbers the document of each key, (S,) or (B, S).

    >>> documents([0, 0, 1]).to_dense(3).int()
    tensor([[1, 1, 0],
            [1, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """
    ids = torch.as_tensor(ids)
    if ids.ndim not in (1, 2) or ids.dtype.is_floating_point or ids.dtype == torch.bool:
        raise ValueError(f"documents: expected whole ids (S,) or (B, S), got {tuple(ids.shape)} {ids.dtype}")
    return Documents(ids if ids.ndim == 2 else ids[None])


def rule(says: Says) -> Mask:
    """Your own rule: `says(b, h, q, k)` gets index tensors that broadcast and answers with a boolean tensor.

    >>> rule(lambda b, h, q, k: (q - k) % 2 == 0).to_dense(3).int()
    tensor([[1, 0, 1],
            [0, 1, 0],
            [1, 0, 1]], dtype=torch.int32)
    """
    if not callable(says):
        raise ValueError(f"rule: expected a function of (b, h, q, k), got {type(says).__name__}")
    return Rule(says)


def tensor_mask(tensor: Tensor) -> Mask:
    """A mask as a tensor that broadcasts to (B, H, T, S): booleans say who may look, floats are added."""
    if not isinstance(tensor, Tensor):
        raise ValueError(f"mask: expected a tensor or a rule, got {type(tensor).__name__}")
    if tensor.ndim > 4:
        raise ValueError(f"mask: expected at most 4 dimensions (B, H, T, S), got {tuple(tensor.shape)}")
    if tensor.dtype != torch.bool and not tensor.dtype.is_floating_point:
        raise ValueError(
            f"mask: expected booleans (True = may look) or floats (added to the scores), got {tensor.dtype}: "
            "pass .bool() if 1 means may look"
        )
    if tensor.dtype.is_floating_point and tensor.numel() and _looks_boolean(tensor.detach()):
        raise ValueError(
            "mask: a float mask is added to the scores, but this one holds only 0 and 1, which is ambiguous: "
            "pass .bool() if 1 means may look"
        )
    return TensorMask(tensor.view((1,) * (4 - tensor.ndim) + tensor.shape))


def _looks_boolean(tensor: Tensor) -> bool:
    ones = tensor == 1
    return bool(ones.any()) and bool((ones | (tensor == 0)).all())


def alibi(heads: int) -> Mask:
    """Attention with linear biases: slopes 2^(−8/H), 2^(−16/H), … as published, for any number of heads."""
    return Alibi(torch.tensor(alibi_slopes(_count("alibi(heads)", heads, 1))))


def alibi_slopes(heads: int) -> list[float]:
    """The published slopes; between powers of two, every other slope of the next one fills the gap."""
    whole = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (i + 1) / whole) for i in range(whole)]
    return slopes if whole == heads else slopes + alibi_slopes(2 * whole)[::2][: heads - whole]


def causal_mask(n: int) -> Tensor:
    """The (n, n) boolean mask whose lower triangle may look.

    >>> causal_mask(3)
    tensor([[ True, False, False],
            [ True,  True, False],
            [ True,  True,  True]])
    """
    return causal.to_dense(_count("causal_mask(n)", n, 0))


def as_mask(mask: Mask | Tensor | None) -> Mask:
    """Whatever a caller may pass as a mask, as a rule."""
    if mask is None:
        return full
    return mask if isinstance(mask, Mask) else tensor_mask(mask)


def _count(name: str, n: int, least: int) -> int:
    try:
        whole = operator.index(n)  # an int, or NumPy's or PyTorch's own
    except TypeError:
        whole = least - 1
    if isinstance(n, bool) or whole < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {n!r}")
    return whole
