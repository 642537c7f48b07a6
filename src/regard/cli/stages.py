"""`regard stages`: a walk through the stages of attention."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def stages(
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="FILE", help="Also save the picture as a .png, .svg or .pdf file."),
    ] = None,
) -> None:
    """Walk through attention from nothing: numbers and heatmaps of every stage, and what to look at.

    \b
    Examples:
      regard stages
      regard stages --save stages.png
      regard stages --save stages.pdf
    """
    from regard.stages.figures.walkthrough import walk

    walk(save)
