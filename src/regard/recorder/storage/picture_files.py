"""Writes the pictures of a capture to its folder as PNG files, and reads them again.

`capture.json` names the files and describes which tokens are their patches. Everything that is read is
checked, since anyone may have written it: names, sizes, and every number.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.pictures.patch_layout import PatchLayout, PatchSpan, Pictures
from regard.pictures.patches import MAX_GRID
from regard.pictures.picture import MAX_SIDE, Picture
from regard.recorder.picture_reader import MAX_PICTURES
from regard.support.files import CaptureFileError, atomic_write, check_type, get_field, open_file, shorten
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
        "layouts": [[_describe_layout(layout) for layout in group] for group in pictures.layouts],
        "axes": [[key, *groups] for key, groups in pictures.axes.items()],
        "text": pictures.text,
    }


def _describe_layout(layout: PatchLayout) -> dict[str, Any]:
    return {
        "spans": [[*span[:4], list(span.places)] for span in layout.spans],
        "special": [[token, name] for token, name in layout.special.items()],
    }


def read_pictures(described: dict[str, Any], folder: Path, keys: Sequence[int | str]) -> Pictures:
    """Rebuild what `describe_pictures` described; a ValueError names the field that is wrong.

    `keys` are those of the capture's layers.
    """
    files = [check_type("files", file, str) for file in get_field(described, "files", list)]
    if len(files) > MAX_PICTURES:
        raise ValueError(f"pictures: expected at most {MAX_PICTURES} files, got {len(files)}")
    layouts = tuple(
        tuple(
            _read_layout(check_type("layouts", x, dict), len(files))
            for x in check_type("layouts", group, list)
        )
        for group in get_field(described, "layouts", list)
    )
    text = get_field(described, "text", int)
    axes: dict[int | str, tuple[int, int]] = {}
    for axis in get_field(described, "axes", list):
        key, *groups = check_type("axes", axis, list) or [None]
        if key not in keys or len(groups) != 2:
            raise ValueError(f"pictures: axes: expected a layer and two groups, got {shorten(axis)}")
        axes[key] = (check_type("axes", groups[0], int), check_type("axes", groups[1], int))
    for group in (text, *(group for groups in axes.values() for group in groups)):
        if not -1 <= group < len(layouts):
            raise ValueError(f"pictures: expected one of {len(layouts)} groups of layouts, got {group}")
    images = tuple(Picture(_read_pixels(file, folder)) for file in files)
    # Anyone may have written the text, and the page shows it.
    return Pictures(images, get_field(described, "about", str)[:1000], layouts, axes, text)


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


def _read_layout(described: dict[str, Any], images: int) -> PatchLayout:
    spans = []
    for span in get_field(described, "spans", list):
        fields = check_type("spans", span, list)
        if len(fields) != 5:
            raise ValueError(f"spans: expected five fields, got {shorten(span)}")
        picture, first, rows, cols = (check_type("spans", n, int) for n in fields[:4])
        places = tuple(check_type("places", n, int) for n in check_type("places", fields[4], list))
        is_grid = 0 < rows <= MAX_GRID and 0 < cols <= MAX_GRID
        is_inside = all(0 <= place < rows * cols for place in places)
        if not -1 <= picture < images or first < 0 or not is_grid or not is_inside:
            raise ValueError(f"spans: expected patches of one of {images} pictures, got {shorten(span)}")
        spans.append(PatchSpan(picture, first, rows, cols, places))
    special: dict[int, str] = {}
    for pair in get_field(described, "special", list):
        token, name, *rest = [*check_type("special", pair, list), None, None][:3]
        if rest != [None] or check_type("special", token, int) < 0:
            raise ValueError(f"special: expected a token and its name, got {shorten(pair)}")
        special[token] = check_type("special", name, str)[:100]
    return PatchLayout(tuple(spans), special)
