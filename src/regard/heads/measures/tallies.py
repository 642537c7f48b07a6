"""Tallies: what every position, every offset and the strongest token ids received, over all texts of a head.

A score on one text cannot tell a head that attends to a position from one that attends to the token there.
Over several texts the same position, offset or token id has to receive the attention, and the tallies tell
which does. This file knows sums; it does not know maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from regard.heads.measures.sink import find_sink_keys

MOST_TOKENS = 16  # token ids that are kept of each head


class BestTarget(NamedTuple):
    """The position, offset or token id with the most attention, None for none, and its mean weight."""

    target: int | None
    share: float


def _nothing(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.float64, device="cpu")


@dataclass
class Tallies:
    """Sums of the heads of one layer, in float64, on the device of its map; undefined ones are empty."""

    keys: Tensor
    """(2, H, S): what every key position received, and the number of queries that see it."""
    offsets: Tensor = field(default_factory=lambda: _nothing(2, 0, 0))
    """(2, H, S): the same of every offset."""
    tokens: Tensor = field(default_factory=lambda: _nothing(0, MOST_TOKENS, 3))
    """(H, MOST_TOKENS, 3): token ids, what they received, and how many queries see one; −1 for none."""

    def complete(self, H: int) -> Tallies:
        """The same with zeros where nothing is defined."""
        offsets = self.offsets if self.offsets.numel() else torch.zeros_like(self.keys)
        tokens = self.keys.new_full((H, MOST_TOKENS, 3), -1.0)
        # In parts: comparing every entry with every other one takes the square of their number.
        for part in torch.split(self.tokens, 4 * MOST_TOKENS, 1) if self.tokens.numel() else ():
            tokens = _merge(torch.cat([tokens, part], 1))
        return Tallies(self.keys, offsets, tokens)

    def select(self, heads: slice) -> Tallies:
        """The tallies of some of the heads."""
        return Tallies(self.keys[:, heads], self.offsets[:, heads], self.tokens[heads])

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return {"keys": self.keys, "offsets": self.offsets, "tokens": self.tokens}

    def fits(self, heads: int) -> bool:
        """Whether its tensors are those of so many heads."""
        S = self.keys.shape[-1]
        shapes = {"keys": (2, heads, S), "offsets": (2, heads, S), "tokens": (heads, MOST_TOKENS, 3)}
        return all(
            tuple(x.shape) == shapes[name] and x.dtype == torch.float64 for name, x in self.tensors.items()
        )

    def __add__(self, other: Tallies) -> Tallies:
        other = Tallies(*(x.to(self.keys.device) for x in other.tensors.values()))
        longest = max(self.keys.shape[-1], other.keys.shape[-1])
        keys, offsets = (
            # Texts of different lengths: positions that one lacks have received nothing there.
            sum(torch.nn.functional.pad(x, (0, longest - x.shape[-1])) for x in pair)
            for pair in ((self.keys, other.keys), (self.offsets, other.offsets))
        )
        return Tallies(keys, offsets, _merge(torch.cat([self.tokens, other.tokens], 1)))  # type: ignore[arg-type]

    def split(self, layers: int) -> list[Tallies]:
        """The tallies of each of so many layers, whose heads lie one layer after another."""
        keys, offsets = (x.chunk(layers, 1) for x in (self.keys, self.offsets))
        tokens = self.tokens.chunk(layers)
        return [
            Tallies(*(x.contiguous() for x in layer)) for layer in zip(keys, offsets, tokens, strict=True)
        ]

    @classmethod
    def join(cls, layers: Sequence[Tallies]) -> Tallies:
        """The tallies of several layers as `split` takes them."""
        parts = zip(*(layer.tensors.values() for layer in layers), strict=True)
        return cls(*(torch.cat(x, axis) for x, axis in zip(parts, (1, 1, 0), strict=True)))

    def best_keys(self, queries: Tensor) -> list[BestTarget]:
        """The position with the largest mean weight, of each head; `queries` (H,) of it see anything."""
        return _best(self.keys, queries)

    def best_offsets(self, queries: Tensor) -> list[BestTarget]:
        """The offset, 2 or more, with the largest mean weight, of each head."""
        sums = self.offsets.clone()
        # Offsets 0 and 1 have scores of their own, itself and previous_token.
        sums[..., :2] = 0.0
        return _best(sums, queries)

    def best_tokens(self, queries: Tensor) -> list[BestTarget]:
        """The token id that received the most in all, and its mean over `queries` (H,).

        They are those that see the token which receives the most in their own text: a token that is in one
        of the texts only is not the one of all.
        """
        mass = self.tokens[..., 1].masked_fill(self.tokens[..., 2] <= 0, -1.0)
        best = self.tokens.gather(1, mass.argmax(-1)[:, None, None].expand(-1, -1, 3))[:, 0].tolist()
        return [
            BestTarget(int(token), received / number) if seeing > 0 and number > 0 else BestTarget(None, 0.0)
            for (token, received, seeing), number in zip(best, queries.tolist(), strict=True)
        ]


def _best(sums: Tensor, queries: Tensor) -> list[BestTarget]:
    """The index with the largest mean of (2, H, S) sums and counts, and that mean, of each head."""
    received, seeing = sums
    keys, shares = find_sink_keys(received, seeing, queries.long().unsqueeze(-1))
    pairs = zip(keys.tolist(), shares.tolist(), strict=True)
    return [BestTarget(None if key < 0 else key, share) for key, share in pairs]


def _merge(tokens: Tensor) -> Tensor:
    """Entries (H, n, 3) with those of the same token id added up; the strongest are kept, −1 for none."""
    ids = tokens[..., 0]
    same = (ids.unsqueeze(-1) == ids.unsqueeze(-2)) & (ids >= 0).unsqueeze(-1)  # (H, n, n)
    sums = same.double() @ tokens[..., 1:]
    earlier = torch.ones(same.shape[1:], dtype=torch.bool, device=same.device).tril(-1)
    is_first = ~(same & earlier).any(-1) & (ids >= 0)
    merged = torch.cat([ids.unsqueeze(-1), sums], -1).masked_fill(~is_first.unsqueeze(-1), -1.0)
    order = merged[..., 1].argsort(dim=1, descending=True, stable=True)[:, :MOST_TOKENS]
    return merged.gather(1, order.unsqueeze(-1).expand(-1, -1, 3))
