"""The proof that a picture is the truth: how far a map is from the output that the model really used.

A layer is certified when the map's weights times the values give the layer's own output, to within rounding,
and every row of weights sums to 1. What cannot be certified says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Evidence:
    """What was found of one layer."""

    difference: float
    """The largest |weights · v − output| over the rows that were looked at."""
    allowed: float
    """What rounding explains, at the layer's dtype and the size of its output."""
    row_sums: float
    """The largest |sum of a row − 1|, the share of a sink counted in."""
    rows: int
    """How many rows were looked at, of `of`."""
    of: int
    mask: str
    scale: float
    softcap: float | None = None
    window: int | None = None
    sinks: bool = False
    problem: str | None = None
    """Why the layer cannot be certified whatever the numbers say, or None."""

    @property
    def certified(self) -> bool:
        return self.problem is None and self.difference <= self.allowed and self.row_sums <= 1e-3

    def __str__(self) -> str:
        looked = f"{self.rows:,} of {self.of:,} rows"
        if self.problem is not None:
            return f"not certified: {self.problem}"
        if not self.certified:
            return (
                f"not certified: off by {self.difference:.1e} ({self.allowed:.1e} would be rounding), "
                f"rows sum to 1 within {self.row_sums:.1e}; {looked}"
            )
        return f"certified within {self.difference:.1e}; {looked}; {self.mask}"


class Certificate(Sequence[Evidence]):
    """The evidence of every layer, by position; prints as a table."""

    def __init__(self, names: Sequence[str], evidence: Sequence[Evidence]) -> None:
        self.names, self.evidence = list(names), list(evidence)

    def __len__(self) -> int:
        return len(self.evidence)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self.evidence[index]

    def __iter__(self) -> Iterator[Evidence]:
        return iter(self.evidence)

    @property
    def certified(self) -> bool:
        """Whether every layer is."""
        return all(found.certified for found in self.evidence)

    def __str__(self) -> str:
        width = max(map(len, self.names), default=0)
        rows = zip(self.names, self.evidence, strict=True)
        return "\n".join(f"{name:<{width}}  {found}" for name, found in rows)
