"""The lessons as notebooks: valid, and their cells run."""

from __future__ import annotations

import ast
import doctest
import os
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from regard.learn.course import LESSONS
from regard.learn.lesson import Lesson
from regard.learn.notebook import make_notebook
from tests.sampling import share


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.noun)
def test_a_notebook_is_valid_and_has_the_whole_lesson(lesson: Lesson) -> None:
    notebook = make_notebook(lesson)
    nbformat.validate(nbformat.from_dict(notebook))
    text = "\n".join(cell["source"] for cell in notebook["cells"])
    for heading in ("# " + f"{lesson.number} {lesson.title}", "## Takeaways"):
        assert heading in text
    assert ">>>" not in text
    assert "data:image/svg+xml;base64," in text


def code_cells(lesson: Lesson) -> list[dict[str, Any]]:
    return [cell for cell in make_notebook(lesson)["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.noun)
def test_the_cells_are_the_sessions_of_the_text(lesson: Lesson) -> None:
    """`test_lessons` runs those. What a line shows, a cell shows: it ends there."""
    examples = doctest.DocTestParser().get_examples(lesson.text)
    sources = [cell["source"] for cell in code_cells(lesson)]
    assert ast.dump(ast.parse("\n".join(sources))) == ast.dump(ast.parse("".join(x.source for x in examples)))
    shown = [example.source.strip() for example in examples if example.want]
    ending = [source for source in sources if source.endswith(tuple(shown))]
    assert len(ending) == len(shown)


def test_notebooks_run() -> None:
    """One kernel for each would start Python and PyTorch every time: it is emptied instead.

    A run has one of them, since `test_lessons` runs the same code; `REGARD_ALL=1` runs all.
    """
    slow = () if os.environ.get("REGARD_ALL") else ("scale", "trained_heads")
    lessons = share([lesson for lesson in LESSONS[1:] if lesson.noun not in slow], len(LESSONS))
    cells: list[dict[str, Any]] = []
    for lesson in lessons:
        cells += make_notebook(lesson)["cells"]
        reset = {"cell_type": "code", "metadata": {}, "source": "%reset -f", "id": f"reset{lesson.number}"}
        cells.append(reset | {"execution_count": None, "outputs": []})
    notebook = nbformat.from_dict(make_notebook(LESSONS[0]) | {"cells": cells})
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    assert sum(bool(cell.outputs) for cell in code) > 3 * len(lessons)
