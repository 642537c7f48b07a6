"""`Patches`: how a vision model cuts a picture into patches, as a user says it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

MAX_GRID = 4096
"""The most rows or columns of patches."""


@dataclass(frozen=True, eq=False)
class Patches:
    """How a model reads pictures: the argument `patches` of `regard.capture`, where it is not found itself.

    - `rows`, `cols`: the grid of patches, from the top left to the bottom right, row by row. None leaves it
      to the model's config and its patch embedding.
    - `prefix`: the names of the tokens before the patches, such as ["CLS"]; None leaves them to the model.
    - `picture`: the pixels (C, H, W), or (B, C, H, W) for a batch, of a model that takes its patches instead;
      None takes the pixels from the model's own inputs.
    - `mean`, `std`: what was subtracted from the channels of pixels from 0 to 1, and what they were then
      divided by, for display alone; None takes what the model's family is trained with.
    """

    rows: int | None = None
    cols: int | None = None
    prefix: Sequence[str] | None = None
    picture: Tensor | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if (self.rows is None) != (self.cols is None):
            raise ValueError(f"patches: expected both rows and cols, got {self.rows} and {self.cols}")
        for name in ("rows", "cols"):
            n = getattr(self, name)
            if n is not None and (isinstance(n, bool) or not isinstance(n, int) or not 0 < n <= MAX_GRID):
                raise ValueError(f"patches: {name}: expected a number from 1 to {MAX_GRID}, got {n!r}")
        if isinstance(self.prefix, str) or not all(isinstance(name, str) for name in self.prefix or ()):
            raise ValueError(f'patches: prefix: expected a list of names, as ["CLS"], got {self.prefix!r}')
        if (self.mean is None) != (self.std is None):
            raise ValueError("patches: expected both mean and std, got one of them")
        if self.mean is not None and self.std is not None and not _match(self.mean, self.std):
            raise ValueError(
                "patches: expected a mean and a positive std for each of one or three channels, "
                f"got {self.mean!r} and {self.std!r}"
            )
        if self.picture is not None and (
            not isinstance(self.picture, Tensor)
            or self.picture.ndim not in (3, 4)
            or self.picture.shape[-3] not in (1, 3)
            or not self.picture.numel()
        ):
            raise ValueError(
                "patches: picture: expected pixels (C, H, W) or (B, C, H, W) with one channel or three, "
                f"got {getattr(self.picture, 'shape', type(self.picture).__name__)}"
            )


def _match(mean: Sequence[float], std: Sequence[float]) -> bool:
    """Whether these are the numbers of one channel or three."""
    numbers = all(isinstance(x, int | float) for x in (*mean, *std))
    return numbers and len(mean) == len(std) and len(mean) in (1, 3) and min(std) > 0
