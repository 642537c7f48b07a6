"""`regard conformance`: cases of attention for any language, and the judgement of the results."""

from __future__ import annotations

from pathlib import Path

import typer

from regard.cli.parts.output import EXIT_CODES, end_with
from regard.conformance.case_folder import write_cases
from regard.conformance.judgement import judge as run
from regard.support.characters import escape


def write(*, folder: Path, seed: int) -> None:
    """Write inputs and float64 answers as safetensors, with an index in JSON."""
    typer.echo(escape(str(write_cases(folder, seed))))


def judge(*, folder: Path, results: Path, as_json: bool) -> None:
    """Compare an implementation's results with the right ones, and name its mistake."""
    judgement = run(folder, results)
    end_with(judgement, EXIT_CODES[judgement.verdict], as_json)
