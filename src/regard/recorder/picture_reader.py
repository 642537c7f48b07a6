"""`PictureReader`: from the pixels of a forward pass and the layers that ran to the pictures of a capture.

The pixels become pictures when the pass begins, since the caller may write to them later; which tokens are
which patches is found when the layers are known, from their shapes. This file knows a model's tower and what
a user said about patches; it does not know files or pages.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.pictures.patch_layout import NONE, PatchLayout, PatchSpan, Pictures
from regard.pictures.patches import MAX_GRID, Patches
from regard.pictures.picture import Normalisation, Picture, display_pixels
from regard.recorder.layer import Layer
from regard.recorder.sources.structure_of_models.vision_tower import (
    PixelInputs,
    VisionTower,
    find_vision_tower,
)

MAX_PICTURES = 64
"""The most pictures of a batch that are kept."""
MAX_PREFIX = 16
"""The most tokens before the patches that are believed to be such."""

Grid = tuple[int, int]
Layouts = tuple[PatchLayout, ...]


class ReadPictures(NamedTuple):
    """The pictures of a forward pass."""

    images: tuple[Picture, ...]
    about: str
    grids: list[Grid]
    """The rows and columns of each picture's patches; more than there are images if some were not kept."""


class PictureReader:
    """Reads the pictures of a model's forward passes.

    - `model`: the model.
    - `attention_names`: finds the names of its attention modules.
    - `patches`: what the user says about its patches.
    """

    def __init__(
        self, model: nn.Module, attention_names: Callable[[], Collection[str]], patches: Patches | None = None
    ) -> None:
        self.model, self.attention_names = model, attention_names
        self.patches, self.is_given = patches or Patches(), patches is not None

    @cached_property
    def tower(self) -> VisionTower | None:
        """What reads the pictures; it is looked for when there are some."""
        return find_vision_tower(self.model, self.attention_names())

    def read(self, inputs: PixelInputs | None) -> ReadPictures | None:
        """Return the pictures in the arguments of a forward pass; None if there are none."""
        if self.patches.picture is not None:
            picture = self.patches.picture
            inputs = PixelInputs(picture[None] if picture.ndim == 3 else picture)
        if inputs is None or (self.tower is None and not self.is_given):
            return None
        if inputs.grids is not None:
            return self._read_patches(inputs.pixels, inputs.grids)
        N, _, height, width = inputs.pixels.shape
        if self.patches.rows is not None and self.patches.cols is not None:
            grid = (self.patches.rows, self.patches.cols)
        elif self.tower is not None:
            grid = self.tower.grid(height, width)
        else:
            return None
        return self._show(list(inputs.pixels[:MAX_PICTURES]), [grid] * N)

    def _read_patches(self, pixels: Tensor, grids: Tensor) -> ReadPictures | None:
        """Put pictures together from their patches, as Qwen2-VL's processor cuts them."""
        tower, sizes = self.tower, grids.tolist()
        if tower is None or tower.frames is None or any(frames != 1 for frames, _, _ in sizes):
            return None  # a video
        m, (high, wide) = tower.merge, tower.patch
        count = sum(rows * cols for _, rows, cols in sizes)
        is_cut = all(rows % m == 0 and cols % m == 0 for _, rows, cols in sizes)
        if tuple(pixels.shape) != (count, tower.channels * tower.frames * high * wide) or not is_cut:
            return None
        images = []
        parts = torch.split(pixels, [rows * cols for _, rows, cols in sizes])
        for (_, rows, cols), part in list(zip(sizes, parts, strict=True))[:MAX_PICTURES]:
            x = part.view(rows // m, cols // m, m, m, tower.channels, tower.frames, high, wide)
            # Qwen2-VL repeats a still picture for the frames that its embedding joins.
            x = x[:, :, :, :, :, 0].permute(4, 0, 2, 5, 1, 3, 6)  # (C, rows / m, m, high, cols / m, m, wide)
            images.append(x.reshape(tower.channels, rows * high, cols * wide))
        return self._show(images, [(rows, cols) for _, rows, cols in sizes])

    def _show(self, pixels: list[Tensor], grids: list[Grid]) -> ReadPictures:
        normalisation = None if self.tower is None else self.tower.normalisation
        if self.patches.mean is not None and self.patches.std is not None:
            normalisation = Normalisation(
                tuple(self.patches.mean), tuple(self.patches.std), "the argument patches says"
            )
        shown = [display_pixels(x, normalisation) for x in pixels]
        return ReadPictures(tuple(Picture(x.pixels) for x in shown), shown[0].about, grids)

    def locate(self, read: ReadPictures, layers: list[Layer], ids: Tensor | None) -> Pictures | None:
        """Return the pictures with the layers whose tokens are their patches; None without any such layer.

        `ids` (B, T) are the tokens of the text that the model read, if it read one.
        """
        of_text = self._text_layouts(read.grids, len(read.images), ids)
        groups: list[Layouts] = [] if of_text is None else [of_text]
        text, first = (NONE, 0) if of_text is None else (0, 1)  # the text's own group is no tower's
        axes: dict[int | str, tuple[int, int]] = {}

        def number(layouts: Layouts | None) -> int:
            if layouts is None:
                return NONE
            if layouts not in groups[first:]:
                groups.append(layouts)
            return groups.index(layouts, first)

        for layer in layers:
            if self.tower is not None and not self.tower.holds(layer.name):
                if text >= 0 and ids is not None and layer.shape[3] <= ids.shape[1]:
                    axes[layer.key] = (text, text)
                continue
            B, _, T, S = layer.shape
            keys = self._tower_layouts(read, layer, B, S)
            if keys is None:
                continue
            # SigLIP pools its patches by attention from one learned query.
            pooled = (PatchLayout(special={0: "pooling query"}),) * B if T == 1 != S else None
            queries = keys if T == S else pooled
            axes[layer.key] = (number(queries), number(keys))
        if not axes:
            return None
        return Pictures(read.images, read.about, tuple(groups), axes, text)

    def _tower_layouts(self, read: ReadPictures, layer: Layer, B: int, S: int) -> Layouts | None:
        """Return what the keys of a layer of the tower are, for each batch entry; None if that is unknown."""
        grids, kept = read.grids, len(read.images)
        if max(max(grid) for grid in grids) > MAX_GRID or (self.tower and self.tower.permutes_windows):
            return None
        if (windows := self._window_layouts(grids, layer, B, S)) is not None:
            return windows
        merge = self.tower.merge if self.tower is not None and self.tower.frames is not None else 1
        if len(grids) == B and all(grid == grids[0] for grid in grids):
            rows, cols = grids[0]
            names = self._prefix(S - rows * cols)
            if names is None:
                return None
            special = dict(enumerate(names))
            spans = [_span(n if n < kept else NONE, len(names), grid, merge) for n, grid in enumerate(grids)]
            return tuple(PatchLayout((span,), special) for span in spans)
        *firsts, end = itertools.accumulate((rows * cols for rows, cols in grids), initial=0)
        if B == 1 and end == S:  # one picture after another
            numbers = [n if n < kept else NONE for n in range(len(grids))]
            spans = [_span(*span, merge) for span in zip(numbers, firsts, grids, strict=True)]
            return (PatchLayout(tuple(spans)),)
        return None

    def _prefix(self, count: int) -> list[str] | None:
        """Return the names of so many tokens before the patches; None if there cannot be so many."""
        if self.patches.prefix is not None:
            return list(self.patches.prefix) if len(self.patches.prefix) == count else None
        if not 0 <= count <= MAX_PREFIX:
            return None
        names = [] if self.tower is None else self.tower.prefix_names()
        if len(names) == count:
            return names
        return ["CLS"] if count == 1 else [f"special {n + 1}" for n in range(count)]

    def _window_layouts(self, grids: list[Grid], layer: Layer, B: int, S: int) -> Layouts | None:
        """Return the layouts of a layer whose batch entries are windows, as in Swin; None for others."""
        parent = layer.name.rpartition(".")[0]
        block = dict(self.model.named_modules()).get(parent)
        side, shift = getattr(block, "window_size", None), getattr(block, "shift_size", None)
        if not isinstance(side, int) or not isinstance(shift, int) or side * side != S:
            return None
        # Each stage joins patches two by two: find the stage whose windows make up the batch.
        layouts: list[PatchLayout] = []
        for number, (rows, cols) in enumerate(grids):
            windows = B // len(grids)
            while rows * cols > windows * S and rows % 2 == 0 and cols % 2 == 0:
                rows, cols = rows // 2, cols // 2
            if rows * cols != windows * S or rows % side or cols % side:
                return None
            places = torch.arange(rows * cols, device="cpu").view(rows, cols).roll((-shift, -shift), (0, 1))
            places = places.view(rows // side, side, cols // side, side).transpose(1, 2).reshape(-1, S)
            layouts += [
                PatchLayout((PatchSpan(number if number < MAX_PICTURES else NONE, 0, rows, cols, tuple(x)),))
                for x in places.tolist()
            ]
        return tuple(layouts) if len(layouts) == B else None

    def _text_layouts(self, grids: list[Grid], kept: int, ids: Tensor | None) -> Layouts | None:
        """Return which tokens of a text are patches, for each batch entry; None if none are."""
        token = _image_token(self.model)
        if ids is None or token is None or self.tower is None:
            return None
        is_image = ids == token  # (B, T)
        total, patches = int(is_image.sum()), sum(rows * cols for rows, cols in grids)
        if not total:
            return None
        pending = list(enumerate(grids))
        layouts = []
        for row in is_image:
            positions = row.nonzero().flatten().tolist()
            spans: list[PatchSpan] = []
            special: dict[int, str] = {}
            while positions:
                if not pending:
                    return None
                number, (rows, cols) = pending.pop(0)
                count, rest = divmod(rows * cols * total, patches)
                grid, prefix = self._text_grid(count, (rows, cols))
                run, positions = positions[:count], positions[count:]
                if rest or grid is None or len(run) < count or run[-1] - run[0] != count - 1:
                    return None
                special |= {run[i]: name for i, name in enumerate(prefix)}
                spans.append(_span(number if number < kept else NONE, run[0] + len(prefix), grid))
            layouts.append(PatchLayout(tuple(spans), special))
        return tuple(layouts)

    def _text_grid(self, count: int, grid: Grid) -> tuple[Grid | None, list[str]]:
        """Return the grid that so many tokens of a text make up, and the names of tokens before it."""
        rows, cols = grid
        names = self._prefix(count - rows * cols)
        if names is not None:
            return grid, names
        factors = (n for n in range(2, min(grid) + 1) if rows % n == cols % n == 0)
        joined = next((n for n in factors if rows * cols == count * n * n), None)  # n × n patches a token
        return (None if joined is None else (rows // joined, cols // joined)), []


def _span(picture: int, first: int, grid: Grid, merge: int = 1) -> PatchSpan:
    """Return the patches of a picture: row by row, or squares of `merge` to a side, one after another."""
    rows, cols = grid
    places = (
        torch.arange(rows * cols, device="cpu")
        .view(rows // merge, merge, cols // merge, merge)
        .transpose(1, 2)
    )
    return PatchSpan(picture, first, rows, cols, tuple(places.flatten().tolist()))


def _image_token(model: nn.Module) -> int | None:
    """Return the id of the tokens that stand for patches in a text, if the model's config has one."""
    # Configurations that call it image_token_index, as LLaVA's, have this name for it as well.
    number = getattr(getattr(model, "config", None), "image_token_id", None)
    return number if isinstance(number, int) else None
