"""Write the pictures of the lessons: of those that are named, or of all that have a module here."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from regard.learn.course import LESSONS
from regard.stages.figures.picture import save_figure

HERE = Path(__file__).parent


def main(nouns: list[str]) -> None:
    """Write `picture.svg` of each lesson that is named by its noun; of every lesson if none is."""
    for lesson in LESSONS:
        module = next(HERE.rglob(f"{lesson.noun}.py"), None)
        if lesson.noun in nouns or (not nouns and module is not None):
            assert module is not None, f"there is no {lesson.noun}.py"
            name = ".".join(module.relative_to(HERE).with_suffix("").parts)
            figure = importlib.import_module(f"scripts.lesson_pictures.{name}").draw()
            save_figure(figure, lesson.folder / "picture.svg")
            print(lesson.folder.name, "picture.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
