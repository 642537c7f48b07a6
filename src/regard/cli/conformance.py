"""`regard conformance`: cases of attention for any language, and the judgement of the results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.parts.verdict import EXIT_CODES, end_with
from regard.support.characters import escape

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Write cases of attention that any language can read, and judge an implementation's results.",
)


@app.command()
def write(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write; it is made.")],
    seed: Annotated[int, typer.Option(metavar="N", help="Another seed draws other numbers.")] = 0,
) -> None:
    """Write inputs and float64 answers as safetensors, with an index in JSON.

    \b
    Example:
      regard conformance write cases
    """
    from regard.conformance.case_folder import write_cases

    typer.echo(escape(str(write_cases(folder, seed))))


@app.command()
def judge(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="What `write` wrote.")],
    results: Annotated[
        Path, typer.Argument(metavar="RESULTS.safetensors", help="What the implementation computed.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the judgement as JSON.")] = False,
) -> None:
    """Compare an implementation's results with the right ones, and name its mistake.

    Exit code: 0 right, 1 wrong, 2 the files could not be read, 3 there was no output to judge.

    \b
    Example:
      regard conformance judge cases results.safetensors
    """
    from regard.conformance.judgement import judge as run

    judgement = run(folder, results)
    end_with(judgement, EXIT_CODES[judgement.verdict], as_json)
