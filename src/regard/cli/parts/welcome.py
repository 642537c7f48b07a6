"""What `regard` says without a command: the three ways to begin."""

from __future__ import annotations

import tomllib
from pathlib import Path

from rich.console import Console
from rich.text import Text

PROMISE = "Attention you can read, check and see, at any length."
WAYS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def greet() -> None:
    """Print the three ways, in colour if this is a terminal."""
    console = Console(highlight=False)
    console.print(Text.assemble(("Regard", "bold"), f": {PROMISE[0].lower()}{PROMISE[1:]}\n"))
    for name, way in WAYS.items():
        console.print(Text.assemble((f"{name:<7}", "bold cyan"), way["question"]))
        for command, result in way["commands"]:
            console.print(Text.assemble(" " * 7, f"{command:<34}", (result, "dim")))
        console.print()
    console.print(Text.assemble("Every command: regard --help", style="dim"))
