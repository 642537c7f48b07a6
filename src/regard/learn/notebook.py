"""A lesson as a Jupyter notebook: the sessions of its text become code cells, the rest stays Markdown."""

from __future__ import annotations

import base64
import doctest
import re
from typing import Any

from regard.learn.lesson import Lesson

SESSION = re.compile(r"^```python\n(>>> .*?)^```\n?", re.MULTILINE | re.DOTALL)


def make_notebook(lesson: Lesson) -> dict[str, Any]:
    """Return a lesson as a notebook of format 4.5, plain data for JSON. It has no output before it is run."""
    parts = SESSION.split(_with_pictures(lesson))  # Markdown, session, Markdown, …
    cells = [
        _cell("code", code_of(part)) if index % 2 else _cell("markdown", part.strip())
        for index, part in enumerate(parts)
        if part.strip()
    ]
    for index, cell in enumerate(cells):
        cell["id"] = f"lesson{lesson.number}-{index}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": cells}


def code_of(session: str) -> str:
    """Return the code of an interactive session, without prompts and output.

    >>> code_of(">>> 1 + 1\\n2\\n")
    '1 + 1'
    """
    examples = doctest.DocTestParser().get_examples(session)
    return "".join(example.source for example in examples).strip()


def _with_pictures(lesson: Lesson) -> str:
    """The text of a lesson with its pictures as data in it."""

    def as_data(found: re.Match[str]) -> str:
        data = base64.b64encode((lesson.folder / found[2]).read_bytes()).decode("ascii")
        return f"![{found[1]}](data:image/svg+xml;base64,{data})"

    return re.sub(r"!\[([^\]]*)\]\(([\w.-]+\.svg)\)", as_data, lesson.text)


def _cell(kind: str, source: str) -> dict[str, Any]:
    cell: dict[str, Any] = {"cell_type": kind, "metadata": {}, "source": source}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})
