"""`regard learn`: the course, lesson by lesson."""

from __future__ import annotations

import ast
import datetime
import hashlib
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.checker.errors import CheckError
from regard.cli.grade import grade as grade_files
from regard.learn.course import LESSONS, get_lesson, next_lesson
from regard.learn.exercise import find_names, make_exercise, plain_solution
from regard.learn.judgement import is_done, judge_in_process
from regard.learn.lesson import Lesson, Outcome
from regard.learn.notebook import make_notebook
from regard.learn.page import page_path, picture_path, show_picture, write_pages
from regard.learn.picture import print_picture, save_picture
from regard.learn.progress import NAME, read_progress, write_progress
from regard.support.characters import escape
from regard.support.files import atomic_write

FULL_PAGE = 5  # the lesson from which on the page of a mistake in the catalogue can be understood
OWN_CODE = 13  # the lesson from which on a mistake is explained in the lesson's code, or else in general
INTERVAL = 0.3  # seconds between two looks at a watched file
MARKS = {"done": "✓", "guessed": "→", "wrong": "✗", "unfinished": "…"}
STYLES = {"done": "green", "guessed": "cyan", "wrong": "red", "unfinished": "yellow"}
# A dict is ordered: the worst status of a lesson's tasks decides.
EXIT_CODES = {
    "wrong": 1,
    "unfinished": 3,
    "guessed": 0,
    "done": 0,
}  # the first that a task has; 2: it could not be judged


def learn(
    *,
    lesson: str | None,
    check: bool,
    watch: bool,
    hint: bool,
    solution: bool,
    notebook: bool,
    again: bool,
    answer: str | None,
    give_up: bool,
    grade: Path | None,
    as_json: bool,
    seed: int,
    timeout: float | None,
    folder: Path,
    open_: bool,
) -> None:
    """Learn attention by writing it: lessons that judge your code and name your mistake."""
    if grade is not None:
        raise typer.Exit(grade_files(lesson, grade, seed, as_json, timeout))
    if as_json:
        raise ValueError("--json is for --grade FOLDER")
    if not folder.is_dir():
        raise ValueError(f"--folder: there is no folder {str(folder)!r}: make it first")
    if lesson is None:
        if check or watch or hint or solution or notebook or again:
            raise ValueError("expected the number of a lesson, as in regard learn 3 --check")
        _list(folder)
    elif lesson == "hunt":
        # Here, since it imports PyTorch, as the viewer below does: lessons are listed and judged without it.
        from regard.cli.hunt import hunt

        hunt(folder, answer, give_up)
    else:
        chosen = _lesson(lesson)
        if solution:
            _print_solution(chosen)
        elif notebook:
            _write_notebook(chosen, folder)
        elif watch:
            _watch(chosen, folder, timeout)
        elif chosen.question and (check or answer):
            raise typer.Exit(_judge_answer(chosen, folder, answer))
        elif check or hint:
            raise typer.Exit(_judge(chosen, folder, hint, timeout))
        else:
            _begin(chosen, folder, again, open_)


def _lesson(text: str) -> Lesson:
    if not text.isdecimal():
        raise ValueError(f"expected the number of a lesson, 0 to {LESSONS[-1].number}, or hunt, got {text!r}")
    return get_lesson(int(text))


def _list(folder: Path) -> None:
    progress = read_progress(folder)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for lesson in LESSONS:
        done = lesson.number in progress.done
        title = f"[green]✓ {lesson.title}[/green]" if done else f"  {lesson.title}"
        table.add_row(str(lesson.number), title, f"[dim]{lesson.idea}[/dim]")
    console = Console(highlight=False)
    console.print(f"Attention from nothing, in {len(LESSONS)} lessons. You write it; regard checks it.\n")
    console.print(table)
    following = next((lesson for lesson in LESSONS if lesson.number not in progress.done), None)
    if following is None:
        console.print("\nAll done. Find mistakes in other people's code: regard learn hunt")
    else:
        begin = "Go on" if progress.done else "Begin"
        console.print(f"\n{begin}: regard learn {following.number}")
        if any(lesson.number in progress.done for lesson in LESSONS if lesson.has_code):
            console.print("Or find the mistake in a piece of code: regard learn hunt")


def _begin(lesson: Lesson, folder: Path, again: bool, open_: bool) -> None:
    """Write the learner's file, unless it is there, and the pages; open the page."""
    from regard.show.viewer import open_browser

    path = folder / lesson.file
    if lesson.has_code:
        # A learner's file is never overwritten unasked: it is their work.
        if not path.exists() or (again and _may_replace(path)):
            with atomic_write(path) as file:
                file.write_text(make_exercise(lesson.solution), encoding="utf-8")
            typer.echo(f"{path}: {lesson.goal}. Complete the lines that are still `...`.")
        else:
            typer.echo(f"{path} is there already and stays as it is.")
    # A lesson without code is done by reading it; nothing else would ever mark it.
    elif not lesson.question:
        progress = read_progress(folder)
        progress.done.setdefault(lesson.number, _today())
        write_progress(folder, progress)
    page = page_path(lesson, folder)
    if not page.parent.exists():
        typer.echo(
            f"The lessons' pages are in {page.parent}, your progress in {folder / NAME}: work in this folder."
        )
    write_pages(folder)
    typer.echo(f"{page}: read this first.")
    if lesson.has_code:
        typer.echo(
            f"\nThen: regard learn {lesson.number} --check   (or --watch, which checks whenever you save)"
        )
    elif lesson.command:
        typer.echo(
            f"\nBeside it: {lesson.command}\nOnce you are through: regard learn {lesson.number} --check"
        )
    else:
        typer.echo(f"\nThen: regard learn {_next_argument(lesson)}")
    if open_:
        open_browser(page.resolve().as_uri())


def _next_argument(lesson: Lesson) -> str:
    """What to write after `regard learn` to go on after a lesson."""
    following = next_lesson(lesson)
    return "hunt" if following is None else str(following.number)


def _may_replace(path: Path) -> bool:
    if not sys.stdin.isatty():
        raise ValueError(f"--again: {path} is there already, and nobody is there to ask: move it away first")
    return typer.confirm(f"Replace {path}? What you wrote there is lost.", default=False)


def _print_solution(lesson: Lesson) -> None:
    if not lesson.has_code:
        raise ValueError(f"lesson {lesson.number} has nothing to write")
    typer.echo(plain_solution(lesson.solution), nl=False)


def _write_notebook(lesson: Lesson, folder: Path) -> None:
    path = folder / f"lesson{lesson.number}.ipynb"
    if path.exists() and not _may_replace(path):
        return
    with atomic_write(path) as file:
        file.write_text(json.dumps(make_notebook(lesson), indent=1, ensure_ascii=False), encoding="utf-8")
    typer.echo(f"{path}: the lesson as a notebook.")


def _judge(lesson: Lesson, folder: Path, hint: bool, timeout: float | None) -> int:
    """Judge the learner's file, print what came of it, keep the progress; return the exit code."""
    console = Console(highlight=False)
    progress = read_progress(folder)
    if not lesson.has_code:
        next_step = f"go on with regard learn {_next_argument(lesson)}"
        if lesson.answers and lesson.number not in progress.done:
            next_step = f"its question is in regard learn {lesson.number} --check"
        raise ValueError(f"lesson {lesson.number} has nothing to write: {next_step}")
    printed = ""
    try:
        # A hint is tried before it is told, which takes as long as judging.
        limit = timeout or lesson.timeout * (2 if hint else 1)
        with console.status(f"Judging, at most {limit:g} s …") as status:

            def tell(line: dict[str, Any]) -> None:
                nonlocal printed
                printed = str(line.get("printed", printed))
                if "doing" in line:
                    status.update(escape(str(line["doing"])))

            outcomes = judge_in_process(lesson, folder / lesson.file, timeout=limit, hints=hint, tell=tell)
    except CheckError as error:
        _print_printed(printed)
        typer.echo(f"regard: {escape(str(error))}", err=True)
        return 2
    _print_printed(printed)
    program = (folder / lesson.file).read_text(encoding="utf-8")
    keys = {outcome.task: _key(outcome, program) for outcome in outcomes if outcome.hint}
    before = progress.hinted.get(lesson.number, [])
    # How many hints about this very code were told before.
    told = {task: before.count(key) for task, key in keys.items()}
    if hint:
        # Only what is wrong now: the same mistake made again later begins with the first hint.
        progress.hinted[lesson.number] = [key for task, key in keys.items() for _ in range(told[task] + 1)]
    progress.tries[lesson.number] = progress.tries.get(lesson.number, 0) + 1
    met = [outcome.mistake for outcome in outcomes if outcome.mistake]
    progress.met = list(dict.fromkeys([*progress.met, *met]))
    if is_done(outcomes):
        # setdefault: the day on which it was done first stays.
        progress.done.setdefault(lesson.number, _today())
    write_progress(folder, progress)  # before anything is printed: the reader's pipe may be closed
    _print_outcomes(console, lesson, outcomes, told if hint else None)
    if is_done(outcomes):
        _celebrate(console, lesson, outcomes, folder)
    return next(EXIT_CODES[s] for s in EXIT_CODES if s in {outcome.status for outcome in outcomes})


def _print_printed(printed: str) -> None:
    """Print what the learner's code has printed, so that `print(x.shape)` helps."""
    if printed:
        typer.echo("Your code printed:\n" + "\n".join(f"  {escape(x)}" for x in printed.splitlines()) + "\n")


def _judge_answer(lesson: Lesson, folder: Path, answer: str | None) -> int:
    """Ask the question of a lesson without code, or judge the answer to it; return the exit code."""
    answers = dict(lesson.answers)
    right, *_ = answers
    if answer is None and lesson.number in read_progress(folder).done:
        typer.echo(f"{MARKS['done']} {right}: {answers[right]}")
        return EXIT_CODES["done"]
    given = (answer or "").strip().lower().replace(" ", "-").replace("_", "-")
    if given not in answers:
        typer.echo(f"{MARKS['unfinished']} {lesson.question}")
        typer.echo(f"regard learn {lesson.number} --answer {'|'.join(sorted(answers))}")
        return EXIT_CODES["unfinished"]
    status = "done" if given == right else "wrong"
    typer.echo(f"{MARKS[status]} {given}: {answers[given]}")
    if status == "done":
        progress = read_progress(folder)
        progress.done.setdefault(lesson.number, _today())
        write_progress(folder, progress)
        _celebrate(Console(highlight=False), lesson, [], folder)
    return EXIT_CODES[status]


def _key(outcome: Outcome, program: str) -> str:
    """The code of a task: asked about the same again, a hint says more."""
    code = [ast.dump(x) for x in ast.parse(program).body if outcome.task in find_names(x)]
    digest = hashlib.sha256("".join(code).encode()).hexdigest()[:8]
    return f"{outcome.task} {digest}"


def _print_outcomes(
    console: Any, lesson: Lesson, outcomes: list[Outcome], told: Mapping[str, int] | None
) -> None:
    """Print what came of each task, each with its next hint; `told` are those before, None for no hints."""
    can_say_more = False
    for outcome in outcomes:
        head = f"{MARKS[outcome.status]} {outcome.task}"
        name = f": {outcome.mistake}." if outcome.mistake else ":"
        console.print(
            Text.assemble((escape(head + name), STYLES[outcome.status]), " ", escape(outcome.message))
        )
        if told is not None and (outcome.hints or outcome.status == "wrong"):
            number = told.get(outcome.task, 0)
            hints = outcome.hints
            if outcome.status == "wrong":
                way_out = f"regard learn {lesson.number} --solution has the answer"
                hints = (*hints, f"{hints[-1]} ({way_out})" if hints else way_out)
            text = hints[min(number, len(hints) - 1)]
            console.print(Text.assemble(("  hint: ", "cyan"), escape(text)))
            can_say_more |= number + 1 < len(hints)
    if told is None and any(outcome.hint for outcome in outcomes):
        console.print(f"\nHow to fix it: regard learn {lesson.number} --hint", style="dim")
    elif can_say_more:
        console.print("\nAnother --hint says more.", style="dim")
    mistake = next((outcome.mistake for outcome in outcomes if outcome.mistake), "")
    if mistake and (lesson.says_of(mistake) or lesson.number >= OWN_CODE):
        command = f"regard explain-mistake {mistake} --lesson {lesson.number}"
        console.print(f"All about it:  {command}", style="dim")
    # The page of the catalogue speaks of masks and of training, which a learner has met by then.
    elif mistake and lesson.number >= FULL_PAGE:
        console.print(f"All about it:  regard explain-mistake {mistake}", style="dim")


def _celebrate(console: Any, lesson: Lesson, outcomes: list[Outcome], folder: Path) -> None:
    """Show the learner's own weights, and what comes next."""
    picture = next((outcome.picture for outcome in outcomes if outcome.picture), None)
    if picture is not None:
        print_picture(console, picture)
        # The learner may have removed the folder of the pages since they were written.
        picture_path(lesson, folder).parent.mkdir(exist_ok=True)
        save_picture(picture, picture_path(lesson, folder))
        show_picture(lesson, folder)
        console.print(f"Your weights are on the lesson's page now: {page_path(lesson, folder)}", markup=False)
    following = next_lesson(lesson)
    console.print(f"\n[bold green]Lesson {lesson.number} is done.[/bold green] Now you have: {lesson.idea}.")
    if following is None:
        console.print("That was the last one. Find mistakes in other people's code: regard learn hunt")
    else:
        console.print(f"Next, {following.title}: regard learn {following.number}")


def _watch(lesson: Lesson, folder: Path, timeout: float | None) -> None:
    """Judge the learner's file whenever it changes, until it is right or Ctrl-C."""
    path = folder / lesson.file
    seen: tuple[float, int] | None = None
    while True:
        now = (path.stat().st_mtime, path.stat().st_size) if path.exists() else (0.0, -1)
        if now != seen:
            seen = now
            typer.echo(f"\n{path}, {datetime.datetime.now():%H:%M:%S}")
            if _judge(lesson, folder, False, timeout) == 0:
                return
            typer.echo(f"Waiting until you save {path}; Ctrl-C ends it.")
        time.sleep(INTERVAL)


def _today() -> str:
    return datetime.date.today().isoformat()
