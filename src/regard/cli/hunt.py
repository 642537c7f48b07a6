"""`regard learn hunt`: find the mistake in a piece of code."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from regard.escapes import escape

if TYPE_CHECKING:
    from regard.learn.hunt import Puzzle
    from regard.learn.progress import LearnerProgress

LATER = ("kernels", "several processes")  # themes that come when the others are found


def hunt(folder: Path, answer: str | None) -> None:
    """Show a puzzle and judge answers: at a terminal until it is found, else one answer for each call.

    Arguments:
        folder: where the learner's progress is.
        answer: an answer to the last puzzle; a new one is drawn if None.
    """
    from rich.console import Console

    from regard.learn.hunt import draw
    from regard.learn.progress import read_progress

    console = Console(highlight=False)
    progress = read_progress(folder)
    if answer is not None:
        if not progress.puzzle:
            raise ValueError("--answer: there is no puzzle yet: regard learn hunt draws one")
        raise typer.Exit(0 if _answer(console, folder, progress, answer) else 1)
    if not progress.puzzle:
        progress.puzzle, progress.attempts = _choose(progress), 0
    puzzle = draw(seed=0, mistake=progress.puzzle)
    _show(console, puzzle)
    _keep(folder, progress)
    if not sys.stdin.isatty():
        console.print(
            "Answer: regard learn hunt --answer NAME   (or its number; ? gives it away)", markup=False
        )
        return
    while progress.puzzle:
        _answer(
            console, folder, progress, typer.prompt("Which mistake is it? (name or number, ? gives it away)")
        )


def _choose(progress: LearnerProgress) -> str:
    """Draw a mistake that is not found yet; those of kernels and of several processes come last."""
    from regard.checker.catalogue import THEMES

    early = [m.name for theme, mistakes in THEMES.items() if theme not in LATER for m in mistakes]
    late = [m.name for theme in LATER for m in THEMES[theme]]
    for names in (early, late, early + late):
        if left := [name for name in names if name not in progress.found]:
            return random.choice(left)
    return random.choice(early + late)


def _show(console: Any, puzzle: Puzzle) -> None:
    from rich.syntax import Syntax

    console.print(f"One mistake is in `{puzzle.subject}`. Which?\n", markup=False)
    console.print(
        Syntax(puzzle.code, "python", line_numbers=True, background_color="default", word_wrap=True)
    )
    for number, name in enumerate(puzzle.candidates, start=1):
        console.print(f"  {number}  {name}", markup=False)
    console.print("Or any other name of regard check --list.\n", markup=False)


def _answer(console: Any, folder: Path, progress: LearnerProgress, answer: str) -> bool:
    """Judge an answer to the last puzzle and keep the progress; return whether it is right."""
    from regard.learn.hunt import draw, judge_answer, solve

    puzzle = draw(seed=0, mistake=progress.puzzle)
    if answer.strip() == "?":
        console.print(solve(puzzle), markup=False)
        progress.puzzle = ""
        _keep(folder, progress)
        return False
    progress.attempts += 1
    judged = judge_answer(puzzle, answer, progress.attempts)
    console.print(escape(judged.text), style="green" if judged.right else "yellow", markup=False)
    if judged.hint:
        console.print(escape(judged.hint), markup=False)
    if judged.right:
        progress.found = list(dict.fromkeys([*progress.found, puzzle.mistake]))
        progress.puzzle = ""
        console.print(f"Found so far: {len(progress.found)}. Another one: regard learn hunt", markup=False)
    _keep(folder, progress)
    return judged.right


def _keep(folder: Path, progress: LearnerProgress) -> None:
    from regard.learn.progress import write_progress

    write_progress(folder, progress)
