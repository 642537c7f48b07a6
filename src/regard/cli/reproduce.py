"""`regard reproduce`: runs a published result about attention again, and says whether it holds here."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill

import torch
import typer

from regard.reproduce.record import RunOptions
from regard.reproduce.runs import RESULTS, load, save
from regard.reproduce.runs import reproduce as run
from regard.support.characters import escape

QUICK = "This was --quick: few texts or steps, and a small model. The verdict of the full run may be another."


def reproduce(*, names: list[str] | None, quick: bool, out: Path, seed: int, device: str | None) -> None:
    """Run published results about attention again, and say what holds: numbers, intervals, baselines."""
    if not names:
        for name, about in RESULTS.items():
            typer.echo(f"{name:12} {about.title}")
        return
    for name in names:
        load(name)  # a wrong name is said before minutes of work

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
