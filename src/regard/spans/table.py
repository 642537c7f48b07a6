"""`SpanTable`: how much attention each part of a text gives to each part, by head, by layer and as the mean.

This file knows numbers and names; `span_mass` measures them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from regard.heads.measures.running_sums import students_t
from regard.heads.measures.without_sink import MIN_REST
from regard.maps.spans import find_name
from regard.support.cell_output import PrintedOutput
from regard.support.characters import escape
from regard.support.table import Column, Table, find_head

SINK_NAME, REST_NAME = "[sink]", "[rest]"
NAME_WIDTH = 32  # characters of a name in the printed table
Level = Literal["mean", "layers", "heads"]


class SpanInterval(NamedTuple):
    """The ends of a 95% interval over texts; NaN where there are fewer than two."""

    low: Tensor
    high: Tensor


class SpanHead(NamedTuple):
    """A head and the mass that it puts on a part, beside that of uniform attention."""

    layer: int | str
    head: int
    mass: float
    uniform: float


@dataclass(frozen=True)
class SpanTable(PrintedOutput):
    """The mass that each row span puts on each column span: the mean over the queries of the row.

    Made by `seen.spans(rows, cols)` and by `regard.spans.mean(captures, spans=…)`. Prints as a table.
    """

    rows: tuple[str, ...]
    """The names of the row spans."""
    cols: tuple[str, ...]
    """The names of the column spans, then "[sink]", and "[rest]" for tokens in no span if there are some.

    What a head gives to its sink key, if it has one, counts there, and not in the span of that key.
    """
    places: tuple[tuple[int | str, int], ...]
    """The key of the layer and the number of the head, for each head."""
    masses: Tensor
    """(texts, heads, rows, cols); NaN where a text has no such span."""
    uniform_masses: Tensor
    """The same for uniform attention to the visible keys."""
    model: str = ""
    """The name of the model."""

    @property
    def uniform(self) -> SpanTable:
        """The table of uniform attention to the visible keys: the baseline of every number.

        It depends on the length of a part, on the mask and on where the rows are.
        """
        return replace(self, masses=self.uniform_masses)

    @property
    def without_sink(self) -> SpanTable:
        """The table of rows renormalised without the sink's column, beside a baseline without it, too.

        NaN where a head gives its sink nearly everything. A head without a sink has the same numbers.
        """
        sink = self.cols.index(SINK_NAME)
        others = [number for number in range(len(self.cols)) if number != sink]
        masses, uniform_masses = (
            x[..., others]
            / x[..., others].sum(-1, keepdim=True).where(x[..., [sink]] < 1 - MIN_REST, math.nan)
            for x in (self.masses, self.uniform_masses)
        )
        cols = tuple(self.cols[number] for number in others)
        return replace(self, cols=cols, masses=masses, uniform_masses=uniform_masses)

    @property
    def texts(self) -> int:
        """The number of texts."""
        return len(self.masses)

    @property
    def keys(self) -> tuple[int | str, ...]:
        """The keys of the layers."""
        return tuple(dict.fromkeys(key for key, _ in self.places))

    @property
    def heads(self) -> Tensor:
        """The mass for each head, (heads, rows, cols), in the order of `places`."""
        return self.masses.nanmean(0)

    @property
    def layers(self) -> Tensor:
        """The mean over the heads of each layer, (layers, rows, cols), in the order of `keys`."""
        return self._by_text("layers").nanmean(0)

    @property
    def mean(self) -> Tensor:
        """The mean over all heads, (rows, cols)."""
        return self._by_text("mean").nanmean(0)

    def interval(self, of: Level = "mean") -> SpanInterval:
        """The 95% interval over texts `of` the "mean", the "layers" or the "heads", by Student's t.

        A text is one observation; with one text there is no interval, and the ends are NaN.
        """
        values = self._by_text(of)
        counts = (~values.isnan()).sum(0)
        mean = values.nanmean(0)
        # clamp: one text has no variance, and its interval is NaN below in any case.
        variance = (values - mean).square().nansum(0) / (counts - 1).clamp(min=1)
        reach = torch.full_like(mean, math.nan)
        for count in set(counts.flatten().tolist()):
            if count > 1:
                error = (variance / count).sqrt() * students_t(count - 1)
                reach = torch.where(counts == count, error, reach)
        return SpanInterval(mean - reach, mean + reach)

    def _by_text(self, of: Level) -> Tensor:
        """The numbers of each text: (texts, heads or layers, rows, cols), or (texts, rows, cols)."""
        if of == "heads":
            return self.masses
        if of == "mean":
            return self.masses.nanmean(1)
        if of != "layers":
            raise ValueError(f"of: expected 'mean', 'layers' or 'heads', got {of!r}")
        groups = [
            [number for number, place in enumerate(self.places) if place[0] == key] for key in self.keys
        ]
        return torch.stack([self.masses[:, group].nanmean(1) for group in groups], 1)

    def __getitem__(self, place: tuple[int | str, int]) -> Tensor:
        """The mass for one head, (rows, cols), by its layer and head: `table[3, 5]`."""
        head: Tensor = self.heads[
            find_head(self.places, place, "a layer and a head of the table, as table[3, 5]")
        ]
        return head

    def best(self, col: str, n: int = 5, row: str | None = None) -> list[SpanHead]:
        """The n heads with the most mass on a part beyond that of uniform attention, the first one first.

        `col` is the name of the part and `row` that of the row span, by default the mean over all of them.
        """
        column = find_name("col", self.cols, col)
        rows = range(len(self.rows)) if row is None else [find_name("row", self.rows, row)]
        mass, uniform = (x[:, list(rows), column].mean(1) for x in (self.heads, self.uniform.heads))
        # nan_to_num(−inf): a head without a number comes last instead of first.
        order = (mass - uniform).nan_to_num(-math.inf).argsort(descending=True, stable=True)[:n]
        places = [(self.places[i], i) for i in order.tolist()]
        return [SpanHead(layer, head, float(mass[i]), float(uniform[i])) for (layer, head), i in places]

    def to_pandas(self) -> Any:
        """A DataFrame with a row for each head, row span and column span: its mass and the uniform one."""
        heads, uniform = self.heads, self.uniform.heads
        records = [
            (key, head, row, col, float(heads[n, i, j]), float(uniform[n, i, j]))
            for n, (key, head) in enumerate(self.places)
            for i, row in enumerate(self.rows)
            for j, col in enumerate(self.cols)
        ]
        return Table(("layer", "head", "row", "col", "mass", "uniform"), records).to_pandas()

    def __repr__(self) -> str:
        return f"SpanTable({len(self.rows)} rows × {len(self.cols)} columns, {len(self.places)} heads)"

    def __str__(self) -> str:
        """A block for each row span: the mean mass on each part, beside that of uniform attention."""
        names = [_shown(name) for name in self.cols]
        # Names are indented below that of their row, and the numbers of all blocks are aligned.
        width = max(map(len, [*names, *map(_shown, self.rows)]), default=0) + 2
        mean, uniform, (low, high) = self.mean, self.uniform.mean, self.interval()
        lines = []
        for i, row in enumerate(self.rows):
            numbers = [Column("mass", ".3f", True, 6), Column("uniform", ".3f", True, 8)]
            values = [mean[i].tolist(), uniform[i].tolist()]
            if self.texts > 1:
                numbers.insert(1, Column("95%", right=True, width=11))
                ends = zip(low[i].tolist(), high[i].tolist(), strict=True)
                values.insert(1, [f"{a:.3f}–{b:.3f}" for a, b in ends])
            rows = zip((f"  {name}" for name in names), *values, strict=True)
            lines += Table([Column(_shown(row), width=width), *numbers], rows).lines(gap=" ")
        return "\n".join(lines)


def _shown(name: str) -> str:
    """A name as it is printed: without the spaces around it, and not too long."""
    name = escape(" ".join(name.split()))
    return name if len(name) <= NAME_WIDTH else f"{name[: NAME_WIDTH - 1]}…"
