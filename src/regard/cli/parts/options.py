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
Device = Annotated[
    str | None,
    typer.Option("--device", metavar="NAME", help="cpu or cuda. By default a GPU is used if there is one."),
]
