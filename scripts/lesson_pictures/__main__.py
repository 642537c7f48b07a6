"""Write the pictures of the lessons: of those that are named, or of all that have a module here."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from regard.learn.course import LESSONS
from regard.stages.figures.picture import save_figure

HERE = Path(__file__).parent


def main(nouns: list[str]) -> None:
    """Write the pictures of each lesson that is named by its noun; of every lesson if none is."""
    for lesson in LESSONS:
        module = next(HERE.rglob(f"{lesson.noun}.py"), None)
        if module is not None and (lesson.noun in nouns or not nouns):
            name = ".".join(module.relative_to(HERE).with_suffix("").parts)
            drawn = importlib.import_module(f"scripts.lesson_pictures.{name}").draw()
            figures = drawn if isinstance(drawn, dict) else {"picture": drawn}
            for file, figure in figures.items():
                save_figure(figure, lesson.folder / f"{file}.svg")
                print(lesson.folder.name, f"{file}.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
