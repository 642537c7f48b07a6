"""`regard explain-mistake NAME`: one mistake of the catalogue, with the wrong line marked."""

from __future__ import annotations

import textwrap

import typer
from rich.console import Console
from rich.text import Text

from regard.auditor.diagnosis import reading_lines, reading_mistakes
from regard.checker.catalogue import CATALOGUE, unknown_mistake
from regard.checker.examples import (
    PROPERTY_TESTS,
    clearest_kind,
    code_of_test,
    example_program,
    kinds_with_a_test,
    make_snippet,
)
from regard.cli.learn import FULL_PAGE
from regard.learn.course import get_lesson
from regard.learn.wrong_ways import (
    MODEL_MISTAKES,
    ModelMistake,
    explain_in_lesson,
    find_mistake,
    lessons_about,
)

STYLES = {"+": "green", "-": "red", " ": ""}


def explain_mistake(*, name: str, code: bool, test: bool, lesson: int | None) -> None:
    """Explain one mistake: the wrong line and the right one, what you see, why, and the fix."""
    if lesson is not None and _explain_in_lesson(name, lesson):
        return

    readings = reading_mistakes()
    # Of a model on a batch, without a program; batch-items-mixed is in both catalogues.
    if name not in CATALOGUE and (reading := readings.get(name)) is not None:
        for line in reading_lines(reading):
            typer.echo(line)
        return
    if (mistake := MODEL_MISTAKES.get(name)) is not None:
        _explain_model_mistake(mistake)
        return
    if (entry := CATALOGUE.get(name)) is None:
        raise unknown_mistake(name, [*CATALOGUE, *readings, *MODEL_MISTAKES])
    kind = clearest_kind(entry, kinds_with_a_test(entry))
    if code:
        typer.echo(example_program(entry), nl=False)
        return
    if test:
        typer.echo(code_of_test(entry, kind))
        return

    console = Console(highlight=False)

    def paragraph(start: str, text: str, indent: str) -> None:
        # textwrap and not Rich: Rich has no hanging indent.
        wrapped = textwrap.fill(
            start + text,
            console.width,
            initial_indent=indent[:2],
            subsequent_indent=indent,
            break_on_hyphens=False,  # a name such as mask-after-softmax stays whole, to be copied
        )
        line = Text(wrapped)
        line.stylize("bold", 0, len(indent[:2] + start))
        console.print(line, soft_wrap=True)

    paragraph(entry.name, f": attention {entry.what}.", "")
    console.print()
    for mark, text in make_snippet(entry, kind):  # code is not wrapped
        console.print(Text(f"  {mark} {text}".rstrip(), style=STYLES[mark]), soft_wrap=True)
    console.print(Text.assemble("\n  ", ("-", "red"), " wrong  ", ("+", "green"), " right, abridged\n"))
    for title in ("effect", "symptom", "why", "fix", "origin"):
        paragraph(f"{title:<9}", getattr(entry, title), " " * 11)
    if entry.warning:
        paragraph("", "This is a warning: it does not make the verdict wrong.", "  ")
    paragraph(f"{'test':<9}", PROPERTY_TESTS[entry.test].property, " " * 11)
    console.print(
        f"\nA program with it: regard explain-mistake {name} --code; a test that finds it: --test.",
        soft_wrap=True,
    )


def _explain_in_lesson(name: str, number: int) -> bool:
    """Explain a mistake by the code of a lesson, in words that the lesson has used by then.

    Return False if the lesson has none for it, and its reader can follow the general explanation.
    """
    explanation = explain_in_lesson(get_lesson(number), name)
    if explanation is None and number >= FULL_PAGE:
        return False
    if explanation is None:
        raise ValueError(f"--lesson: {name!r} is none of the mistakes that lesson {number} knows")
    entry = find_mistake(name)
    # What the lesson's table does not say, one of its judges does, or what the mistake always does.
    said = explanation.row or ("" if explanation.ways or entry is None else entry.effect)
    console = Console(highlight=False)
    console.print(Text.assemble((name, "bold"), f": {said}" if said else ""))
    for line in ("", *explanation.lines) if explanation.lines else ():
        console.print(
            Text(f"  {line[:1]} {line[1:]}".rstrip(), style=STYLES.get(line[:1], "")), soft_wrap=True
        )
    if explanation.lines:
        console.print(
            Text.assemble("\n  ", ("-", "red"), " wrong  ", ("+", "green"), f" right, in lesson{number}.py")
        )
    for function, wrong, hint in explanation.ways:
        console.print(Text.assemble("\nIn ", (function, "bold"), f": {wrong}"))
        if hint:
            console.print(Text(f"  fix: {hint}"))
    # What is always true of it; a mistake of the course alone has no reason of its own.
    for title in ("effect", "why", "fix"):
        text = getattr(entry, title, "")
        if text and text != said:
            console.print(Text.assemble("\n", (title, "bold"), f"  {text}"))
    return True


def _explain_model_mistake(mistake: ModelMistake) -> None:
    """Explain a mistake that the course names and the checker's catalogue, which is of attention, has not."""
    typer.echo(f"{mistake.name}: {mistake.effect}\n\nfix  {mistake.fix}")
    for lesson in lessons_about(mistake.name):
        typer.echo(f"\nIn the code of lesson {lesson.number}, {lesson.title}:")
        typer.echo(f"  regard explain-mistake {mistake.name} --lesson {lesson.number}")
