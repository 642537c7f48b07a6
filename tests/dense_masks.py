"""Random masks beside their matrices, which are written from the definitions, for attacks of many draws.

`strategies.py` draws with Hypothesis and asks a plain function for each entry; here whole matrices are
computed at once, so that a few hundred tokens take no time.
"""

import random
from typing import NamedTuple

import torch
from torch import Tensor

import regard
from regard.attention.masks.base import Mask


class Place(NamedTuple):
    """The numbers of batch, head, query position and key, which broadcast to (B, H, T, S)."""

    b: Tensor
    h: Tensor
    i: Tensor  # query i of T stands at position i + S − T
    j: Tensor

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, T, S)."""
        return self.b.numel(), self.h.numel(), self.i.numel(), self.j.numel()


class DenseMask(NamedTuple):
    """A mask and the matrices that it stands for, (B, H, T, S) each."""

    mask: Mask
    allowed: Tensor
    bias: Tensor | None = None


def place(B: int, H: int, T: int, S: int) -> Place:
    """The place of every entry of a matrix of B sequences, H heads, T queries and S keys."""
    return Place(
        torch.arange(B).view(B, 1, 1, 1),
        torch.arange(H).view(1, H, 1, 1),
        (torch.arange(T) + S - T).view(1, 1, T, 1),
        torch.arange(S).view(1, 1, 1, S),
    )


def draw_mask(rng: random.Random, at: Place, depth: int = 2) -> DenseMask:
    """Any mask without a bias, or a combination of such masks."""
    kind = rng.choice(["one", "one", "&", "|", "~"] if depth else ["one"])
    if kind == "one":
        return _draw_one(rng, at)
    left = draw_mask(rng, at, depth - 1)
    if kind == "~":
        return DenseMask(~left.mask, ~left.allowed)
    right = draw_mask(rng, at, depth - 1)
    if kind == "&":
        return DenseMask(left.mask & right.mask, left.allowed & right.allowed)
    return DenseMask(left.mask | right.mask, left.allowed | right.allowed)


def draw_biased_mask(rng: random.Random, at: Place, magnitude: float) -> DenseMask:
    """Any mask, joined with ALiBi or with a float tensor of numbers up to about `magnitude`."""
    mask, allowed, _ = draw_mask(rng, at)
    B, H, T, S = at.shape
    if rng.random() < 0.3 and H & (H - 1) == 0:  # the published slopes for a power of two
        slopes = 2.0 ** (-8 * (at.h + 1) / H)
        return DenseMask(mask & regard.alibi(H), allowed, (-slopes * (at.i - at.j).abs()).expand(at.shape))
    shape = rng.choice([(T, S), (1, S), (H, T, S), (B, 1, T, S), (B, H, T, S)])
    bias = magnitude * torch.randn(shape, generator=_generator(rng))
    if rng.random() < 0.3:
        bias = bias.masked_fill(torch.rand(shape, generator=_generator(rng)) < 0.3, -torch.inf)
    wide = bias.expand(at.shape)
    return DenseMask(
        mask & regard.tensor_mask(bias), allowed & (wide != -torch.inf), wide.nan_to_num(0.0, neginf=0.0)
    )


def _generator(rng: random.Random) -> torch.Generator:
    return torch.Generator().manual_seed(rng.getrandbits(40))


def _draw_one(rng: random.Random, at: Place) -> DenseMask:
    """One mask by name, beside its definition."""
    B, H, T, S = at.shape
    n, ahead, step = rng.randint(1, S + 2), rng.randint(0, S), rng.randint(2, 4)
    lengths = torch.tensor([rng.randint(0, S) for _ in range(B)])
    real = torch.rand(B, S, generator=_generator(rng)) < 0.6
    table = torch.rand(
        rng.choice([(S,), (T, S), (H, 1, S), (B, 1, T, S), (B, H, T, S)]), generator=_generator(rng)
    )
    masks: list[tuple[Mask, Tensor]] = [
        (regard.full, at.j >= 0),
        (regard.causal, at.j <= at.i),
        (regard.causal.top_left, at.j <= at.i - (S - T)),
        (regard.window(n), at.j > at.i - n),
        (regard.window(n, ahead), (at.j > at.i - n) & (at.j <= at.i + ahead)),
        (regard.prefix(n - 1), at.j < n - 1),
        (regard.chunks(n), at.i.div(n, rounding_mode="floor") == at.j // n),
        (regard.padding(lengths.tolist()), at.j < lengths.view(B, 1, 1, 1)),
        (regard.padding(real), real.view(B, 1, 1, S)),
        (regard.tensor_mask(table < 0.6), table < 0.6),
        (
            regard.rule(lambda b, h, q, k: (b + h + q + k) % step != 0),
            (at.b + at.h + at.i + at.j) % step != 0,
        ),
    ]
    if T <= S:  # every query must have a document
        ids = torch.randint(0, 4, (B, S), generator=_generator(rng)).sort(-1).values
        same = ids[:, S - T :].view(B, 1, T, 1) == ids.view(B, 1, 1, S)
        masks.append((regard.documents(ids), same))
    mask, allowed = rng.choice(masks)
    return DenseMask(mask, allowed.expand(at.shape))
