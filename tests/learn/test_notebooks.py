"""The lessons as notebooks: valid, and their cells run, in one kernel after another."""

from __future__ import annotations

import nbformat
import pytest
from nbclient import NotebookClient

from regard.learn.course import LESSONS
from regard.learn.lesson import Lesson
from regard.learn.notebook import make_notebook

WITH_SESSIONS = [lesson for lesson in LESSONS if (lesson.folder / "lesson.md").exists()]


@pytest.mark.parametrize("lesson", WITH_SESSIONS, ids=lambda lesson: lesson.noun)
def test_the_notebook_of_a_lesson_runs(lesson: Lesson) -> None:
    notebook = nbformat.from_dict(make_notebook(lesson))
    nbformat.validate(notebook)
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert all(cell.execution_count for cell in code)
    assert any(cell.outputs for cell in code)
