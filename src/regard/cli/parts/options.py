"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MODELS = "The model: default (the included one), smollm2, a folder, a .gguf file, or a name on the hub."

ModelName = Annotated[str, typer.Option("--model", metavar="NAME", help=MODELS)]
Texts = Annotated[
    list[str] | None,
    typer.Option("--text", metavar="TEXT", help="Text to read. Repeat the option for several texts."),
]
Files = Annotated[
    list[Path] | None,
    typer.Option("--file", metavar="FILE", help="Text file to read. Repeat the option for several files."),
]
WindowLength = Annotated[
    int, typer.Option("--length", metavar="N", help="Read longer texts in windows of N tokens.")
]
MostWindows = Annotated[
    int, typer.Option("--windows", metavar="N", help="Maximum number of windows, from the beginning.")
]
MaskPage = Annotated[
    Path | None,
    typer.Option("--out", metavar="PAGE.html", help="Also write a page with a picture of each mask."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]
Device = Annotated[
    str | None,
    typer.Option("--device", metavar="NAME", help="cpu or cuda. By default a GPU is used if there is one."),
]
