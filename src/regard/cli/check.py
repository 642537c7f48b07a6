"""`regard check`: is this attention right, and if not, what is wrong with it?"""

from __future__ import annotations

import ast
import json
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.checker.errors import CheckError
from regard.checker.reports.report import Report, report_lines
from regard.checker.sandbox import check_in_process
from regard.cli.parts.output import EXIT_CODES, allow_closed_pipe, end_with
from regard.support.characters import escape


def check(
    *,
    words: list[str],
    target: str | None,
    with_: list[str] | None,
    call: list[str] | None,
    timeout: float,
    memory: float,
    as_json: bool,
    show_list: bool,
    visibility: bool,
    **expected: Any,
) -> None:
    """Check an attention; `expected` are the options that `regard.check` has by the same names."""
    if show_list:
        with allow_closed_pipe():
            _print_catalogue(as_json)
        return
    if visibility:
        # Here, since it imports PyTorch, and so does the catalogue below: code is checked in another process.
        from regard.checker.mistake_visibility import measure_visibility

        end_with(measure_visibility(), 0, as_json)
    words = [target, *words] if target else []  # --with takes several words
    places = [word for word in words if "=" not in word]
    try:
        if len(places) != 1:
            raise CheckError(
                f"expected one thing to check, as path/to/file.py:Name, got {', '.join(places) or 'none'}"
            )
        options: dict[str, Any] = {
            "init": _arguments("--with", [*(with_ or []), *(word for word in words if "=" in word)]),
            "call": _arguments("--call", call or []),
        }
        # None means that the option was not given; False is an answer (--no-causal).
        options |= {name: value for name, value in expected.items() if value is not None}
        report = check_in_process(places[0], options, timeout=timeout, memory=memory)
    except CheckError as error:
        if as_json:
            result = {"verdict": None, "ok": None, "error": str(error)}
            # In JSON an error goes to stdout as well, so that a program need not parse two formats.
            typer.echo(escape(json.dumps(result, ensure_ascii=False)))
        else:
            typer.echo(f"regard: {escape(str(error))}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        end_with(report, EXIT_CODES[report.verdict], as_json)
    with allow_closed_pipe():
        print_report(report)
    raise typer.Exit(EXIT_CODES[report.verdict])


def _arguments(option: str, words: list[str]) -> dict[str, Any]:
    """`name=value` pairs of an option, the values read as Python where they can be."""
    arguments: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        # isidentifier, since the name becomes a keyword argument.
        if not equals or not name.isidentifier():
            raise CheckError(f"{option}: expected name=value, got {word!r}")
        try:
            # Shells and configs write true, false and none in lower case, which are no literals of Python.
            value = ast.literal_eval(
                {"true": "True", "false": "False", "none": "None"}.get(text.lower(), text)
            )
        # What is no literal is text, so that `norm=rms` needs no quotes; randn(T,C) is read by the checker.
        except (ValueError, SyntaxError):
            value = text
        arguments[name] = value
    return arguments


STYLES = {"right": "bold green", "wrong": "bold red", "undecided": "bold yellow", "fix": "cyan"}
STYLES |= {"passed": "green", "failed": "red", "warning": "yellow", "untried": "yellow", "skipped": "dim"}


def print_report(report: Report) -> None:
    """Print the report in colour, as wide as the terminal."""
    console = Console(highlight=False)
    for line in report_lines(report, console.width):
        text = Text(line.text)
        text.stylize(STYLES.get(line.style, ""), 0, line.styled)
        # soft_wrap: the lines were wrapped to the width already, and Rich would break them once more.
        console.print(text, soft_wrap=True)


def _print_catalogue(as_json: bool) -> None:
    from regard.checker.catalogue import CATALOGUE, THEMES

    if as_json:
        entries = [
            {"name": m.name, "what": m.what, "fix": m.fix, "warning": m.warning} for m in CATALOGUE.values()
        ]
        typer.echo(json.dumps(entries, indent=2, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("mistake", no_wrap=True)
    table.add_column("attention …")
    for theme, mistakes in THEMES.items():
        table.add_row(f"[bold]{theme}[/bold]", "")
        for m in mistakes:
            table.add_row(f"  {m.name}", m.what + (" [dim](warning)[/dim]" if m.warning else ""))
    Console(highlight=False).print(table)
    typer.echo(f"\n{len(CATALOGUE)} mistakes; regard explain-mistake NAME explains one.")
