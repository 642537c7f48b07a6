"""The end of a command that judges: what it found, as text or JSON, and the exit code of its verdict."""

from __future__ import annotations

from typing import Any, NoReturn

import typer

from regard.cli.parts.signals import allow_closed_pipe
from regard.support.characters import escape

EXIT_CODES = {"right": 0, "wrong": 1, "undecided": 3}  # 2: it could not be run


def end_with(report: Any, code: int, as_json: bool) -> NoReturn:
    """Print a report, which has a `to_json`, and end the command with an exit code."""
    with allow_closed_pipe():
        typer.echo(escape(report.to_json()) if as_json else str(report))
    raise typer.Exit(code)
