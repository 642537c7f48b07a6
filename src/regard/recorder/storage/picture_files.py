"""Writes the pictures of a capture to its folder as PNG files, and reads them again.

`capture.json` names the files and describes which tokens are their patches. Everything that is read is
checked, since anyone may have written it: names, sizes, and every number.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.pictures.patch_layout import PatchLayout, PatchSpan, Pictures
from regard.pictures.patches import MAX_GRID
from regard.pictures.picture import MAX_SIDE, Picture
from regard.recorder.picture_reader import MAX_PICTURES
from regard.support.files import CaptureFileError, atomic_write, open_file, shorten
from regard.support.png import decode_png

PICTURE_FILE = re.compile(r"picture-[\w-]{1,100}\.png")
MAX_BYTES = MAX_SIDE * MAX_SIDE * 3 + (1 << 16)
"""The largest file of a picture: deflate adds little to what it cannot compress."""


def write_pictures(pictures: Pictures | None, folder: Path, name: str) -> list[str]:
    """Write pictures under names that contain `name`, and return the names of their files."""
    images = () if pictures is None else pictures.images
    files = [f"picture-{name}-{number}.png" for number in range(len(images))]
    for file, picture in zip(files, images, strict=True):
        with atomic_write(folder / file) as temporary:
            temporary.write_bytes(picture.png)
    return files


def describe_pictures(pictures: Pictures, files: Sequence[str]) -> dict[str, Any]:
    """Describe pictures as plain data; `files` are the names of their files."""
    return {
        "files": list(files),
        "about": pictures.about,
        "layouts": [
            [{"spans": list(map(tuple, x.spans)), "special": list(x.special.items())} for x in group]
            for group in pictures.layouts
        ],
        "axes": [[key, *groups] for key, groups in pictures.axes.items()],
        "text": pictures.text,
    }


class LayoutDescription(NamedTuple):
    """A `PatchLayout` as `capture.json` has it."""

    spans: tuple[PatchSpan, ...]
    special: list[tuple[int, str]]


class PicturesDescription(NamedTuple):
    """The pictures of a capture as `capture.json` has them."""

    files: list[str]
    about: str
    layouts: list[list[LayoutDescription]]
    axes: list[tuple[int | str, int, int]]
    text: int


def read_pictures(described: PicturesDescription, folder: Path, keys: Sequence[int | str]) -> Pictures:
    """Rebuild what `describe_pictures` described; a ValueError names the field that is wrong.

    `keys` are those of the capture's layers.
    """
    files = described.files
    if len(files) > MAX_PICTURES:
        raise ValueError(f"pictures: expected at most {MAX_PICTURES} files, got {len(files)}")
    layouts = tuple(tuple(_read_layout(x, len(files)) for x in group) for group in described.layouts)
    axes = {key: (queries, of_keys) for key, queries, of_keys in described.axes}
    if unknown := axes.keys() - set(keys):
        raise ValueError(f"pictures: axes: expected keys of layers, got {shorten(unknown)}")
    for group in (described.text, *(group for groups in axes.values() for group in groups)):
        if not -1 <= group < len(layouts):
            raise ValueError(f"pictures: expected one of {len(layouts)} groups of layouts, got {group}")
    images = tuple(Picture(_read_pixels(file, folder)) for file in files)
    # Anyone may have written the text, and the page shows it.
    return Pictures(images, described.about[:1000], layouts, axes, described.text)


def _read_pixels(file: str, folder: Path) -> Any:
    """The pixels of a picture's file, which is in the folder and nowhere else."""
    if not PICTURE_FILE.fullmatch(file) or os.path.islink(folder / file):
        raise ValueError(f"files: expected the name of a picture in the folder, got {shorten(file)}")
    with open_file(folder / file, CaptureFileError, "a picture of a capture") as opened:
        # One byte more shows that there are more.
        data = opened.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"{file}: expected a picture of at most {MAX_BYTES:,} bytes, got more")
    try:
        return decode_png(data, MAX_SIDE)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _read_layout(described: LayoutDescription, images: int) -> PatchLayout:
    for span in described.spans:
        is_grid = 0 < span.rows <= MAX_GRID and 0 < span.cols <= MAX_GRID
        is_inside = all(0 <= place < span.rows * span.cols for place in span.places)
        if not -1 <= span.picture < images or span.first < 0 or not is_grid or not is_inside:
            raise ValueError(f"spans: expected patches of one of {images} pictures, got {shorten(span)}")
    if any(token < 0 for token, _ in described.special):
        raise ValueError(f"special: expected tokens and their names, got {shorten(described.special)}")
    return PatchLayout(described.spans, {token: name[:100] for token, name in described.special})
