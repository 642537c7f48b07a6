"""Hypothesis strategies for attention: sizes, tensors, and mask rules with what each should say.

A drawn mask carries its meaning as a plain Python function of (b, h, i, j), written from the definition
beside the rule it belongs to, and combined with `and`, `or`, `not`
where the rule is combined with `&`, `|`, `~`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor

import regard
from regard.attention.masks.base import Mask

dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])


class Sizes(NamedTuple):
    """One attention's sizes, as everywhere: query i of T stands at position i + S − T among the keys."""

    B: int
    H: int
    G: int
    T: int
    S: int
    D: int
    E: int

    @property
    def matrix(self):
        return self.B, self.H, self.T, self.S


@st.composite
def sizes(draw, most=9):
    """Small sizes: fewer, as many and more queries than keys; grouped heads; value width unlike the key's."""
    G, group = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2), (1, 3), (3, 2)]))
    T, S = draw(st.integers(1, most)), draw(st.integers(1, most))
    if draw(st.booleans()):
        T = S
    D = draw(st.integers(1, 8))
    E = draw(st.one_of(st.just(D), st.integers(1, 8)))
    return Sizes(draw(st.integers(1, 3)), G * group, G, T, S, D, E)


class Tensors(NamedTuple):
    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, G, S, D)
    v: Tensor  # (B, G, S, E)
    sinks: Tensor  # (H,)


def tensors(n, seed, dtype=torch.float32):
    """Normal q, k, v and sinks of these sizes, the same for the same seed."""
    made = torch.Generator().manual_seed(seed)
    shapes = (n.B, n.H, n.T, n.D), (n.B, n.G, n.S, n.D), (n.B, n.G, n.S, n.E), (n.H,)
    return Tensors(*(torch.randn(shape, generator=made, dtype=torch.float64).to(dtype) for shape in shapes))


Says = Callable[[int, int, int, int], bool]
Adds = Callable[[int, int, int, int], float]


@dataclass(frozen=True)
class DrawnMask:
    """A rule and its meaning: may query i of head h in sequence b look at key j, and what is added?"""

    mask: Mask
    n: Sizes
    says: Says
    adds: Adds | None = None

    def allowed(self):
        """(B, H, T, S), one entry at a time."""
        return self._each(self.says, torch.bool)

    def score_bias(self):
        """(B, H, T, S) in float64, or None if the rule adds nothing."""
        return None if self.adds is None else self._each(self.adds, torch.float64)

    def _each(self, meaning, dtype):
        B, H, T, S = self.n.matrix
        entries = [
            meaning(b, h, i, j) for b in range(B) for h in range(H) for i in range(T) for j in range(S)
        ]
        return torch.tensor(entries, dtype=dtype).view(B, H, T, S)

    def __and__(self, other):
        def says(b, h, i, j):
            return self.says(b, h, i, j) and other.says(b, h, i, j)

        mask, adders = self.mask & other.mask, [m.adds for m in (self, other) if m.adds is not None]
        if not adders:
            return DrawnMask(mask, self.n, says)
        return DrawnMask(mask, self.n, says, lambda b, h, i, j: sum(adds(b, h, i, j) for adds in adders))

    def __or__(self, other):
        return DrawnMask(
            self.mask | other.mask,
            self.n,
            lambda b, h, i, j: self.says(b, h, i, j) or other.says(b, h, i, j),
        )

    def __invert__(self):
        return DrawnMask(~self.mask, self.n, lambda b, h, i, j: not self.says(b, h, i, j))


@st.composite
def positional_masks(draw, n, family=None):
    """A rule whose answer for a whole block is exact: by position, by padding, or by documents in order."""
    past = n.S - n.T  # query i stands at position i + past
    size, ahead = draw(st.integers(1, n.S + 2)), draw(st.integers(0, n.S))
    lengths = draw(st.lists(st.integers(0, n.S), min_size=n.B, max_size=n.B))
    made = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    real = torch.rand(n.B, n.S, generator=made) < 0.6
    found = {
        "full": DrawnMask(regard.full, n, lambda b, h, i, j: True),
        "causal": DrawnMask(regard.causal, n, lambda b, h, i, j: j <= i + past),
        "top left": DrawnMask(regard.causal.top_left, n, lambda b, h, i, j: j <= i),
        "window": DrawnMask(regard.window(size), n, lambda b, h, i, j: j > i + past - size),
        "ahead": DrawnMask(
            regard.window(size, ahead), n, lambda b, h, i, j: i + past - size < j <= i + past + ahead
        ),
        "prefix": DrawnMask(regard.prefix(size - 1), n, lambda b, h, i, j: j < size - 1),
        "chunks": DrawnMask(regard.chunks(size), n, lambda b, h, i, j: (i + past) // size == j // size),
        "lengths": DrawnMask(regard.padding(lengths), n, lambda b, h, i, j: j < lengths[b]),
        "marks": DrawnMask(regard.padding(real), n, lambda b, h, i, j: bool(real[b, j])),
    }
    if n.T <= n.S:  # every query must have a document
        ids = torch.randint(0, 4, (n.B, n.S), generator=made).sort(-1).values
        same = draw(st.booleans())  # one row of ids for all sequences
        ids = ids[0].expand(n.B, n.S) if same else ids
        rule = regard.documents(ids[0] if same else ids)
        found["documents"] = DrawnMask(rule, n, lambda b, h, i, j: bool(ids[b, i + past] == ids[b, j]))
    return _of_family(draw, found, family)


@st.composite
def arbitrary_masks(draw, n, family=None):
    """A rule that only its entries can tell: your own, a boolean tensor, or documents in no order."""
    past, step = n.S - n.T, draw(st.integers(1, 3))
    made = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    shape = _broadcastable(draw, n)
    table = torch.rand(shape, generator=made) < 0.6
    wide = table.expand(n.matrix)
    found = {
        "of all indices": DrawnMask(
            regard.rule(lambda b, h, q, k: (b + h + q + k) % (step + 1) != 0),
            n,
            lambda b, h, i, j: (b + h + i + past + j) % (step + 1) != 0,
        ),
        "of the head": DrawnMask(
            regard.rule(lambda b, h, q, k: q - k >= h * step),
            n,
            lambda b, h, i, j: i + past - j >= h * step,
        ),
        "of the batch": DrawnMask(regard.rule(lambda b, h, q, k: b != 1), n, lambda b, h, i, j: b != 1),
        "table": DrawnMask(regard.tensor_mask(table), n, lambda b, h, i, j: bool(wide[b, h, i, j])),
    }
    if n.T <= n.S:
        ids = torch.randint(0, 3, (n.B, n.S), generator=made)
        found["unsorted documents"] = DrawnMask(
            regard.documents(ids), n, lambda b, h, i, j: bool(ids[b, i + past] == ids[b, j])
        )
    return _of_family(draw, found, family)


POSITIONAL = (
    "full",
    "causal",
    "top left",
    "window",
    "ahead",
    "prefix",
    "chunks",
    "lengths",
    "marks",
    "documents",
)
ARBITRARY = ("of all indices", "of the head", "of the batch", "table", "unsorted documents")


def _of_family(draw, found, family):
    if family is None:
        return draw(st.sampled_from(list(found.values())))
    assume(family in found)
    return found[family]


@st.composite
def biases(draw, n):
    """A rule that adds to the scores: a float tensor, now and then with −inf in it, or ALiBi."""
    if draw(st.booleans()):
        past, slopes = n.S - n.T, [2.0 ** (-8 * (h + 1) / n.H) for h in range(n.H)]
        if n.H & (n.H - 1) == 0:  # the published slopes for a power of two; others are tested by number
            return DrawnMask(
                regard.alibi(n.H),
                n,
                lambda b, h, i, j: True,
                lambda b, h, i, j: -slopes[h] * abs(i + past - j),
            )
    made = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    table = torch.randn(_broadcastable(draw, n), generator=made)
    if draw(st.booleans()):
        table = table.masked_fill(torch.rand(table.shape, generator=made) < 0.3, -torch.inf)
    wide = table.expand(n.matrix)
    return DrawnMask(
        regard.tensor_mask(table),
        n,
        lambda b, h, i, j: wide[b, h, i, j].item() != -torch.inf,
        lambda b, h, i, j: wide[b, h, i, j].item(),
    )


@st.composite
def masks(draw, n, *, biased=True, depth=2):
    """Any rule or combination of rules; those that add to the scores only where `&` may join them."""
    kind = draw(st.sampled_from(["one", "one", "&", "|", "~"] if depth else ["one"]))
    if kind == "&":
        return draw(masks(n, biased=biased, depth=depth - 1)) & draw(masks(n, biased=biased, depth=depth - 1))
    if kind == "|":
        return draw(masks(n, biased=False, depth=depth - 1)) | draw(masks(n, biased=False, depth=depth - 1))
    if kind == "~":
        return ~draw(masks(n, biased=False, depth=depth - 1))
    families = [positional_masks(n), arbitrary_masks(n)] + ([biases(n)] if biased else [])
    return draw(st.one_of(families))


@st.composite
def sized_masks(draw, *, biased=True, most=9):
    """Sizes and a mask for them."""
    return draw(masks(draw(sizes(most)), biased=biased))


def _broadcastable(draw, n):
    """A shape of two to four dimensions that broadcasts to (B, H, T, S)."""
    whole = tuple(draw(st.sampled_from([1, size])) for size in n.matrix)
    return whole[draw(st.integers(0, 2)) :]
