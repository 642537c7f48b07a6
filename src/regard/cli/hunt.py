"""`regard learn hunt`: find the mistake in a piece of code."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.syntax import Syntax

from regard.checker.catalogue import CATALOGUE, THEMES
from regard.learn.course import LESSONS
from regard.learn.hunt import Puzzle, judge_answer, make_puzzle, solve
from regard.learn.progress import LearnerProgress, read_progress, write_progress
from regard.support.characters import escape

FIRST = 4  # the lesson whose themes are drawn from the start


def hunt(folder: Path, answer: str | None, give_up: bool) -> None:
    """Show a puzzle and judge answers: at a terminal until it is found, else one answer for each call.

    Arguments:
        folder: where the learner's progress is.
        answer: an answer to the last puzzle; a new one is drawn if None.
        give_up: whether to show the mistake of the last puzzle.
    """
    console = Console(highlight=False)
    progress = read_progress(folder)
    if (answer is not None or give_up) and not progress.puzzle:
        raise ValueError("there is no open puzzle: regard learn hunt draws one")
    if give_up:
        _give_away(console, folder, progress)
        return
    if answer is not None:
        raise typer.Exit(0 if _answer(console, folder, progress, answer) else 1)
    if not progress.puzzle:
        progress.puzzle, progress.attempts = _choose(progress), 0
    puzzle = make_puzzle(progress.puzzle)
    _show(console, puzzle)
    _keep(folder, progress)
    # Under a pipe or a scheduler nobody answers a prompt, and each answer is a call of its own.
    if not sys.stdin.isatty():
        console.print("Answer: regard learn hunt --answer NAME   (or its number), or --give-up", markup=False)
        return
    while progress.puzzle:
        _answer(
            console, folder, progress, typer.prompt("Which mistake is it? (name or number, ? gives it away)")
        )


def _choose(progress: LearnerProgress) -> str:
    """Draw a mistake that is not found yet: first of the lessons that are done, then of the others."""
    reached = max([FIRST, *progress.done])
    themes = [theme for lesson in LESSONS if lesson.number <= reached for theme in lesson.themes]
    known = [mistake.name for theme in themes for mistake in THEMES[theme]]
    for names in (known, list(CATALOGUE)):
        if left := [name for name in names if name not in progress.found]:
            # Not seeded: every learner, and every call, is to get another one.
            return random.choice(left)
    return random.choice(list(CATALOGUE))


def _show(console: Any, puzzle: Puzzle) -> None:
    # markup=False, here and below: names and code hold brackets, which Rich would read as styles.
    console.print(f"One mistake is in `{puzzle.subject}`. Which?\n", markup=False)
    console.print(
        Syntax(puzzle.code, "python", line_numbers=True, background_color="default", word_wrap=True)
    )
    console.print()
    for number, name in enumerate(puzzle.candidates, start=1):
        console.print(f"  {number}  {name}", markup=False)
    console.print("Or any other name of regard check --list.\n", markup=False)


def _answer(console: Any, folder: Path, progress: LearnerProgress, answer: str) -> bool:
    """Judge an answer to the last puzzle and keep the progress; return whether it is right."""
    puzzle = make_puzzle(progress.puzzle)
    if answer.strip() == "?":
        _give_away(console, folder, progress)
        return False
    judged = judge_answer(puzzle, answer, progress.attempts + 1)
    if judged.name is None:  # no attempt, and no hint
        console.print(escape(judged.text), markup=False)
        console.print("Answer with 1 to 4, or with a name of regard check --list.", markup=False)
        return False
    progress.attempts += 1
    console.print(escape(judged.text), style="green" if judged.right else "yellow", markup=False)
    if judged.hint:
        console.print(escape(judged.hint), markup=False)
    if judged.right:
        # dict.fromkeys keeps the order in which they were found, each once.
        progress.found = list(dict.fromkeys([*progress.found, puzzle.mistake]))
        progress.puzzle = ""
        console.print(f"Found so far: {len(progress.found)}. Another one: regard learn hunt", markup=False)
    _keep(folder, progress)
    return judged.right


def _give_away(console: Any, folder: Path, progress: LearnerProgress) -> None:
    console.print(solve(make_puzzle(progress.puzzle)), markup=False)
    progress.puzzle = ""
    _keep(folder, progress)


def _keep(folder: Path, progress: LearnerProgress) -> None:
    write_progress(folder, progress)
