"""The moving picture of the README: it has the scenes of `scripts/tour.py`, and is small enough."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from scripts import tour

IMAGES = Path(tour.ROOT, "docs", "images")


@pytest.mark.parametrize("theme", tour.THEMES)
def test_the_picture_has_every_frame_and_is_small(theme: str) -> None:
    path = IMAGES / f"tour-{theme}.webp"
    assert path.stat().st_size <= tour.LIMIT
    with Image.open(path) as picture:
        assert picture.n_frames == len(list(tour.scenes()))  # type: ignore[attr-defined]
        assert picture.size == (tour.WIDTH * tour.DENSITY, (tour.HEIGHT + tour.CAPTION) * tour.DENSITY)


def test_the_readme_shows_it_in_both_themes() -> None:
    readme = Path(tour.ROOT, "README.md").read_text(encoding="utf-8")
    assert all(f"docs/images/tour-{theme}.webp" in readme for theme in tour.THEMES)
