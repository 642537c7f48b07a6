"""`regard reproduce`: runs a published result about attention again, and says whether it holds here."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Annotated

import typer

from regard.cli.parts.options import Device
from regard.support.characters import escape

QUICK = "This was --quick: few texts or steps, and a small model. The verdict of the full run may be another."


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="The results to run. Without a name, the command lists what there is.",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="About a minute on two cores, at small sizes.")
    ] = False,
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Folder for NAME.json and NAME.png.")
    ] = Path("reproduced"),
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Random seed.")] = 0,
    device: Device = None,
) -> None:
    """Run published results about attention again, and say what holds: numbers, intervals, baselines.

    A verdict is about this run: "holds" if every check does, "holds in part", or "does not hold here". Files
    are written when a result is complete: an interrupted run leaves nothing of it.

    \b
    Examples:
      regard reproduce
      regard reproduce induction --quick
      regard reproduce induction --device cuda --out results
    """
    from regard.reproduce.runs import RESULTS, load

    if not names:
        for name, about in RESULTS.items():
            typer.echo(f"{name:12} {about.title}")
        return
    for name in names:
        load(name)  # a wrong name is said before minutes of work
    import torch

    from regard.reproduce.record import RunOptions
    from regard.reproduce.runs import reproduce as run
    from regard.reproduce.runs import save

    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    for name in names:
        options = RunOptions(quick, chosen, seed, report=lambda line: typer.echo(escape(line), err=True))
        record = run(name, options)
        json_file, picture = save(record, out)
        typer.echo(fill(f"{name}: {RESULTS[name].claim}"))
        for check in record.findings.checks:
            typer.echo(f"  {check}")
        if record.findings.note:
            typer.echo(fill(record.findings.note))
        if quick:
            typer.echo(fill(QUICK))
        typer.echo(
            escape(f"{record.findings.verdict} ({record.seconds:.0f} s on {chosen}); {json_file}, {picture}")
        )
