"""A lesson as a Jupyter notebook: the sessions of its text become code cells, the rest stays Markdown.

The first cell says how to install Regard, the last two are the exercise and what judges it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any

from regard.learn.exercise import make_exercise
from regard.learn.lesson import Lesson

INSTALL = """\
# In a hosted notebook, install Regard first: take away the "# " of the next line, and run this cell.
# %pip install "regard[app]"
"""
# A notebook shows an answer only when its cell is run, and a fold cannot go around a cell.
FOLD = re.compile(r"<details>\n|<summary>.*</summary>\n\n|</details>\n")
SESSION = re.compile(r"^```python\n(>>> .*?)^```\n?", re.MULTILINE | re.DOTALL)


def make_notebook(lesson: Lesson) -> dict[str, Any]:
    """Return a lesson as a notebook of format 4.5, plain data for JSON. It has no output before it is run."""
    parts = SESSION.split(FOLD.sub("", _with_pictures(lesson)))  # Markdown, session, Markdown, …
    cells: list[dict[str, Any]] = [_code_cell(INSTALL, "install")]
    for index, part in enumerate(parts):
        if index % 2:
            cells += session_cells(part)
        elif part.strip():
            cells.append({"cell_type": "markdown", "metadata": {}, "source": part.strip()})
    if lesson.has_code:
        cells += _exercise_cells(lesson)
    for index, cell in enumerate(cells):
        cell["id"] = f"lesson{lesson.number}-{index}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": cells}


def session_cells(session: str) -> list[dict[str, Any]]:
    """Return the code of an interactive session as cells, each up to a line that prints something.

    A notebook shows what the last line of a cell gives. Code that is meant to fail is tagged, so that a run
    goes on after it.

    >>> [cell["source"] for cell in session_cells(">>> x = 1\\n>>> x + 1\\n2\\n>>> y = 3\\n")]
    ['x = 1\\nx + 1', 'y = 3']
    """
    # Here, since it imports the debugger, and every command of the course imports this file.
    import doctest

    cells, source = [], ""
    for example in doctest.DocTestParser().get_examples(session):
        # A notebook stops at an error, so that the lines before it get a cell of their own.
        if example.exc_msg is not None and source:
            cells.append(_code_cell(source))
            source = ""
        source += example.source
        if example.want:
            cells.append(_code_cell(source, *["raises-exception"] * (example.exc_msg is not None)))
            source = ""
    return cells + ([_code_cell(source)] if source else [])


def _exercise_cells(lesson: Lesson) -> Iterator[dict[str, Any]]:
    """The exercise in a cell that saves it as the learner's file, and the command that judges that file."""
    task = (
        f"## Your turn\n\nTo do: {lesson.goal}. Replace every `...` in the next cell and run it, which saves "
        f"`{lesson.file}`. Then run the cell below it, which judges the file; `--hint` in place of `--check` "
        "says how to go on."
    )
    yield {"cell_type": "markdown", "metadata": {}, "source": task}
    yield _code_cell(f"%%writefile {lesson.file}\n{make_exercise(lesson.solution)}", "exercise")
    # sys.executable: the Python of this notebook, whichever `regard` stands first on the PATH.
    yield _code_cell(f"import sys\n\n!{{sys.executable}} -m regard learn {lesson.number} --check", "check")


def _code_cell(source: str, *tags: str) -> dict[str, Any]:
    metadata = {"tags": list(tags)} if tags else {}
    cell = {"cell_type": "code", "metadata": metadata, "source": source.strip()}
    return cell | {"execution_count": None, "outputs": []}


def _with_pictures(lesson: Lesson) -> str:

    def as_data(found: re.Match[str]) -> str:
        data = base64.b64encode((lesson.folder / found[2]).read_bytes()).decode("ascii")
        # A notebook is one file: pictures beside it would be lost when it is sent on.
        return f"![{found[1]}](data:image/svg+xml;base64,{data})"

    text = re.sub(r"!\[([^\]]*)\]\(([\w.-]+\.svg)\)", as_data, lesson.text)
    text = re.sub(r"\[([^\]]*)\]\(\.\./(\d\d)_\w+/lesson\.md\)", _command, text)
    # (?<!!) leaves pictures alone, which were replaced above.
    return re.sub(r"(?<!!)\[([^\]]*)\]\((?:\.\./)+([\w/]+\.py)\)", r"\1 (`regard/\2`)", text)


def _command(found: re.Match[str]) -> str:
    """A link to a lesson as the command that begins it."""
    return f"{found[1]} (`regard learn {int(found[2])}`)"
