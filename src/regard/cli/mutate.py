"""`regard mutate`: how many mistakes does a test suite of an attention notice?"""

from __future__ import annotations

from typing import Annotated

import typer

from regard.cli.parts.options import AsJson
from regard.cli.parts.verdict import end_with
from regard.support.characters import escape


def mutate(
    tests: Annotated[
        list[str],
        typer.Argument(metavar="TESTS…", help="Files, folders or tests, as pytest takes them."),
    ],
    target: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="The function under test: package.module:function, or path/to/file.py:function.",
            show_default=False,
        ),
    ],
    mistake: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Try only this mistake; may be repeated.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time limit for the suite without a mistake.")
    ] = 600.0,
    jobs: Annotated[int, typer.Option("--jobs", "-j", metavar="N", help="Processes at a time.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Run a test suite on an attention with one mistake at a time: which does it notice?

    The function is replaced wherever it is bound, also under another name. For a mistake that no test
    notices you get a test to paste. Exit code: 0 all were noticed, 1 some survived, 2 the suite could not be
    run.

    \b
    Examples:
      regard mutate tests/test_attention.py --target package.module:function
      regard mutate tests --target src/kernels.py:attention --jobs 4 --json
    """
    from regard.mutants.suite_runs import mutate as run

    report = run(
        tests,
        target,
        mistakes=mistake,
        timeout=timeout,
        jobs=jobs,
        tell=lambda line: typer.echo(escape(line), err=True),
    )
    end_with(report, 0 if report.ok else 1, as_json)
