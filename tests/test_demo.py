"""The story of `make demo` and the moving picture of the README: their scenes, short and small enough."""

import contextlib
import io
from pathlib import Path

import pytest
from PIL import Image

from regard.show.data.contents import Contents
from scripts import demo, tour


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def story(folder):
    """What the demo prints, run in an empty folder.

    Its page goes without the measures of cache policies, which take the longest and have tests.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Contents, "record_retention", lambda self: None)
        with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as printed:
            demo.main()
    return printed.getvalue()


def test_the_story_has_its_parts_in_order(story):
    parts = ["Look  ", demo.TEXT[:30], "→ come", "induction head", "6 of 6 layers"]
    parts += ["Check ", "weights.tril() @ v", "WRONG: mask-after-softmax", "The fix: "]
    parts += ["See ", "out/inspect.html", "Learn  ", "regard learn 0"]
    places = [story.find(part) for part in parts]
    assert -1 not in places, parts[places.index(-1)]
    assert places == sorted(places)


def test_it_is_short_and_fits_a_terminal(story):
    lines = story.splitlines()
    assert len(lines) <= 55
    assert max(map(len, lines[:-1])) <= 80  # the last line has the path of this Python


def test_it_leaves_only_the_page(story, folder):
    assert story
    assert [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*"))] == [
        "out",
        "out/inspect.html",
    ]
    assert (folder / "out" / "inspect.html").read_text(encoding="utf-8").startswith("<!doctype html>")


IMAGES = Path(tour.ROOT, "docs", "images")


@pytest.mark.parametrize("theme", tour.THEMES)
def test_the_picture_has_every_frame_and_is_small(theme):
    path = IMAGES / f"tour-{theme}.webp"
    assert path.stat().st_size <= tour.LIMIT
    with Image.open(path) as picture:
        assert picture.n_frames == len(list(tour.scenes()))
        assert picture.size == (tour.WIDTH * tour.DENSITY, (tour.HEIGHT + tour.CAPTION) * tour.DENSITY)


def test_the_readme_shows_it_in_both_themes():
    readme = Path(tour.ROOT, "README.md").read_text(encoding="utf-8")
    assert all(f"docs/images/tour-{theme}.webp" in readme for theme in tour.THEMES)
