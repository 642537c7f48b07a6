"""The lessons as notebooks: valid, and their cells run."""

import ast
import doctest
import os

import nbformat
import pytest
from nbclient import NotebookClient

from regard.learn.course import LESSONS
from regard.learn.exercise import make_exercise
from regard.learn.notebook import make_notebook
from tests.sampling import share


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.noun)
def test_a_notebook_is_valid_and_has_the_whole_lesson(lesson):
    notebook = make_notebook(lesson)
    nbformat.validate(nbformat.from_dict(notebook))
    text = "\n".join(cell["source"] for cell in notebook["cells"])
    for heading in ("# " + f"{lesson.number} {lesson.title}", "## Takeaways"):
        assert heading in text
    assert not any(">>>" in cell["source"] for cell in code_cells(lesson))
    assert "data:image/svg+xml;base64," in text


def code_cells(lesson):
    """The cells of the text, without those around it: install, exercise, check."""
    cells = [cell for cell in make_notebook(lesson)["cells"] if cell["cell_type"] == "code"]
    return [cell for cell in cells if cell["metadata"].get("tags") in (None, ["raises-exception"])]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.noun)
def test_a_notebook_has_the_installation_the_exercise_and_its_check(lesson):
    first, *_, exercise, check = make_notebook(lesson)["cells"]
    assert '%pip install "regard[app]"' in first["source"]
    if lesson.has_code:
        assert exercise["source"] == f"%%writefile {lesson.file}\n{make_exercise(lesson.solution)}".strip()
        assert f"learn {lesson.number} --check" in check["source"]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.noun)
def test_the_cells_are_the_sessions_of_the_text(lesson):
    """`test_lessons` runs those. What a line shows, a cell shows: it ends there."""
    examples = doctest.DocTestParser().get_examples(lesson.text)
    sources = [cell["source"] for cell in code_cells(lesson)]
    assert ast.dump(ast.parse("\n".join(sources))) == ast.dump(ast.parse("".join(x.source for x in examples)))
    shown = [example.source.strip() for example in examples if example.want]
    ending = [source for source in sources if source.endswith(tuple(shown))]
    assert len(ending) == len(shown)


@pytest.mark.at_length("test_the_cells_are_the_sessions_of_the_text")
def test_notebooks_run(tmp_path):
    """One kernel for each would start Python and PyTorch every time: it is emptied instead.

    A run has one of them, since `test_lessons` runs the same code; `REGARD_ALL=1` runs all.
    """
    slow = () if os.environ.get("REGARD_ALL") else ("scale", "trained_heads")
    lessons = share([lesson for lesson in LESSONS[1:] if lesson.noun not in slow], len(LESSONS))
    cells = []
    for lesson in lessons:
        cells += make_notebook(lesson)["cells"]
        reset = {"cell_type": "code", "metadata": {}, "source": "%reset -f", "id": f"reset{lesson.number}"}
        cells.append(reset | {"execution_count": None, "outputs": []})
    notebook = nbformat.from_dict(make_notebook(LESSONS[0]) | {"cells": cells})
    # The exercise is written there, and judged: it is unfinished.
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    assert sum(bool(cell.outputs) for cell in code) > 3 * len(lessons)
    checks = [cell for cell in code if "check" in cell.metadata.get("tags", [])]
    assert len(checks) == len(lessons)
    for cell in checks:
        assert "still to write" in "".join(output.text for output in cell.outputs)
