"""`PatchLayout`: which tokens on an axis of a map are which patches of a picture, and what the others are.

Rows and columns of patches count from 0 here, and from 1 in names: "row 1, column 1" is the patch at the top
left. This file knows numbers and names; it does not know models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from regard.pictures.picture import Picture

AxisName = Literal["queries", "keys"]
NONE = -1  # no layout, or no picture


class PatchSpan(NamedTuple):
    """Tokens of an axis, one after another, that are patches of one picture."""

    picture: int
    """The number of the picture in `Pictures.images`; -1 if it was not kept."""
    first: int
    """The first of these tokens."""
    rows: int
    cols: int
    places: tuple[int, ...]
    """For each token the number of its patch, counted row by row from the top left."""


@dataclass(frozen=True)
class PatchLayout:
    """What the tokens of an axis are: patches of pictures, tokens with names such as CLS, or others."""

    spans: tuple[PatchSpan, ...] = ()
    special: Mapping[int, str] = field(default_factory=dict)
    """The names of the tokens beside the patches, as {0: "CLS", 1: "register 1"}."""

    def name(self, token: int) -> str | None:
        """Return the name of a token: "CLS", or "row 3, column 5"; None if it is neither."""
        return self._names.get(token)

    @cached_property
    def _names(self) -> dict[int, str]:
        several = len({span.picture for span in self.spans}) > 1
        names = dict(self.special)
        for number, span in enumerate(self.spans):
            picture = f"picture {number + 1}, " if several else ""
            for token, (row, col) in span_places(span):
                names[token] = f"{picture}row {row + 1}, column {col + 1}"
        return names

    def coordinates(self, size: int) -> Tensor:
        """Return the row and column of each of `size` tokens, float (size, 2); NaN where it is no patch."""
        found = torch.full((size, 2), torch.nan, device="cpu")
        for span in self.spans:
            for token, place in span_places(span):
                if token < size:
                    found[token] = torch.tensor(place, dtype=found.dtype, device="cpu")
        return found


def span_places(span: PatchSpan) -> Iterator[tuple[int, tuple[int, int]]]:
    """The tokens of a span, each with the row and the column of its patch."""
    return ((span.first + i, divmod(place, span.cols)) for i, place in enumerate(span.places))


class PatchAxes(NamedTuple):
    """What the tokens on both axes of a layer of a vision tower are."""

    queries: PatchLayout
    keys: PatchLayout


@dataclass(frozen=True, eq=False)
class Pictures:
    """The pictures that a model read, and which tokens of which layers are their patches."""

    images: tuple[Picture, ...]
    about: str
    """How the colours were found, in a sentence."""
    layouts: tuple[tuple[PatchLayout, ...], ...]
    """Groups of layouts: in each group one for every batch entry."""
    axes: Mapping[int | str, tuple[int, int]]
    """By the key of a layer: the groups of its queries and of its keys; -1 where an axis has none."""
    text: int = NONE
    """The group whose layouts are of the tokens `Capture.ids`; -1 where no text was read."""

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> Picture:
        return self.images[number]

    def layout(self, key: int | str, axis: AxisName, entry: int = 0) -> PatchLayout | None:
        """Return what the tokens on an axis of a layer are; None where they are not those of a picture.

        - `key`: the key of the layer.
        - `axis`: "queries" or "keys".
        - `entry`: the batch entry.

        The layout of a layer that reads text counts the tokens of `Capture.ids`.
        """
        group = self.axes.get(key, (NONE, NONE))[0 if axis == "queries" else 1]
        if group < 0 or not 0 <= entry < len(self.layouts[group]):
            return None
        return self.layouts[group][entry]

    def tower_axes(self, key: int | str, entry: int = 0) -> PatchAxes | None:
        """Return what the tokens of a layer are if it attends among patches; None for any other layer."""
        if not self.is_tower(key):
            return None
        layouts = (self.layout(key, axis, entry) for axis in ("queries", "keys"))
        return PatchAxes(*(layout or PatchLayout() for layout in layouts))

    def is_tower(self, key: int | str) -> bool:
        """Return whether a layer attends among patches, so that its tokens have no order."""
        group = self.axes.get(key, (NONE, NONE))[1]
        return group >= 0 and group != self.text

    def __repr__(self) -> str:
        images, layers = len(self.images), len(self.axes)
        return (
            f"Pictures({images} picture{'s' * (images != 1)}, patches in {layers} layer{'s' * (layers != 1)})"
        )
