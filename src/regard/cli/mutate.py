"""`regard mutate`: how many mistakes does a test suite of an attention notice?"""

from __future__ import annotations

import typer

from regard.cli.parts.output import end_with
from regard.mutants.suite_runs import mutate as run
from regard.support.characters import escape


def mutate(
    *, tests: list[str], target: str, mistake: list[str] | None, timeout: float, jobs: int, as_json: bool
) -> None:
    """Run a test suite on an attention with one mistake at a time: which does it notice?"""
    report = run(
        tests,
        target,
        mistakes=mistake,
        timeout=timeout,
        jobs=jobs,
        tell=lambda line: typer.echo(escape(line), err=True),
    )
    end_with(report, 0 if report.ok else 1, as_json)
