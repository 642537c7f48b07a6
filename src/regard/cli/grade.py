"""`regard learn --grade`: the points of one learner or of a class, as a table or as JSON."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.learn.course import LESSONS, get_lesson
from regard.learn.grades import SubmissionGrade, grade_folder
from regard.learn.lesson import Lesson
from regard.support.characters import escape


def grade(lessons: str | None, folder: Path, seed: int, as_json: bool, timeout: float | None) -> int:
    """Grade a folder and print the points; return the exit code, 0 if every task has its point, else 1."""
    if not folder.is_dir():
        raise ValueError(f"--grade: there is no folder {str(folder)!r}")
    chosen = parse_lessons(lessons)
    # On stderr: what stdout holds may be read by a program.
    with Console(stderr=True, highlight=False).status("Grading …") as status:
        grades = grade_folder(
            folder, chosen, seed=seed, timeout=timeout, tell=lambda doing: status.update(escape(doing))
        )
    if as_json:
        submissions = [submission.to_dict() for submission in grades]
        json.dump({"seed": seed, "submissions": submissions}, sys.stdout, indent=2, ensure_ascii=False)
        typer.echo()
    else:
        for submission in grades:
            _print_grade(submission)
    return int(any(submission.points < submission.of for submission in grades))


def parse_lessons(text: str | None) -> list[Lesson]:
    """Return the lessons of a text such as "3", "1-5" or "1,4"; all of them if there is none."""
    if text is None:
        return list(LESSONS)
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        raise ValueError(f"expected lessons such as 3, 1-5 or 1,4, got {text!r}")
    chosen: dict[int, Lesson] = {}
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = get_lesson(int(first)).number, get_lesson(int(last or first)).number
        chosen |= {number: LESSONS[number] for number in range(low, high + 1)}
    return list(chosen.values())


def _print_grade(submission: SubmissionGrade) -> None:
    console = Console(highlight=False)
    title = f"{submission.name}: {submission.points} of {submission.of} points"
    console.print(Text(escape(title), style="bold"))
    table = Table(box=None, pad_edge=False, show_header=False)
    for lesson in submission.lessons:
        for task in lesson.tasks:
            mistake = f"{task.mistake}. " if task.mistake else ""
            reason = Text(escape(mistake + task.message), style="dim")
            table.add_row(lesson.file, str(task.points), escape(task.task), reason)
    console.print(table)
