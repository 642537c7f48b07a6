"""Options that several commands have, said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MODELS = "default, smollm2, a folder, a .gguf file, or a name on the hub."

ModelName = Annotated[str, typer.Option("--model", metavar="NAME", help=MODELS)]
Texts = Annotated[
    list[str] | None, typer.Option("--text", metavar="TEXT", help="What it reads; may come often.")
]
Files = Annotated[
    list[Path] | None, typer.Option("--file", metavar="FILE", help="A text file; may come often.")
]
