"""`Rectangle`: a run of queries and a run of keys, as an edit cuts the edges between two spans."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from regard.attention.masks.base import Blocks, Grid, Mask


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

    def block_bounds(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        some = (blocks.q_last >= self.first_row) & (blocks.q_first <= self.last_row)
        some = some & (blocks.k_last >= self.first_key) & (blocks.k_first <= self.last_key)
        every = (blocks.q_first >= self.first_row) & (blocks.q_last <= self.last_row)
        every = every & (blocks.k_first >= self.first_key) & (blocks.k_last <= self.last_key)
        return some, every

    def __repr__(self) -> str:
        rows = f"queries {self.first_row} to {self.last_row}"
        return f"rectangle({rows}, keys {self.first_key} to {self.last_key})"
