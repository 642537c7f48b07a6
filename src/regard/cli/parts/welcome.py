"""What `regard` says without a command: the three ways to begin."""

from __future__ import annotations

from typing import NamedTuple


class Way(NamedTuple):
    """One way to begin: its name, the question that it answers, and commands with what each of them gives."""

    name: str
    question: str
    commands: tuple[tuple[str, str], ...]


PROMISE = "Attention you can read, check and see, at any length."
WAYS = (
    Way(
        "Look",
        "What do the heads of a model attend to?",
        (
            ("regard inspect", "a page: the text, every map and weight"),
            ("regard heads", "a table: what each head does"),
            ("regard ablate --head 5.3", "what changes if a head is cut"),
        ),
    ),
    Way(
        "Check",
        "Is the attention that you wrote right, and if not, what is wrong?",
        (("regard check file.py:MyAttention", "the mistake's name, and how to mend it"),),
    ),
    Way(
        "Learn",
        "New to attention? Write it yourself; your mistakes are named.",
        (
            ("regard learn 0", "the first lesson of the course"),
            ("regard learn", "all of them, and how far you are"),
        ),
    ),
)


def greet() -> None:
    """Print the three ways, in colour if this is a terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text.assemble(("Regard", "bold"), f": {PROMISE[0].lower()}{PROMISE[1:]}\n"))
    for way in WAYS:
        console.print(Text.assemble((f"{way.name:<7}", "bold cyan"), way.question))
        for command, result in way.commands:
            console.print(Text.assemble(" " * 7, f"{command:<34}", (result, "dim")))
        console.print()
    console.print(Text.assemble("Every command: regard --help", style="dim"))
