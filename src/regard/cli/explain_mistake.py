"""`regard explain-mistake NAME`: one mistake of the catalogue, with an example that runs."""

from __future__ import annotations

from typing import Annotated

import typer


def explain_mistake(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The name of a mistake, from regard check --list.")
    ],
    code: Annotated[bool, typer.Option("--code", help="Print only the example, to save and run.")] = False,
) -> None:
    """Explain one mistake: its effect, its fix, where it comes from, and a program that contains it.

    \b
    Examples:
      regard explain-mistake softmax-over-queries
      regard explain-mistake no-scale --code > no_scale.py
    """
    from regard.checker.catalogue import get_mistake
    from regard.checker.examples import example_program

    entry = get_mistake(name)
    if code:
        typer.echo(example_program(entry), nl=False)
        return
    from rich.console import Console
    from rich.padding import Padding
    from rich.syntax import Syntax
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text.assemble((entry.name, "bold"), f": attention {entry.what}."))
    for title, text in (("effect", entry.effect), ("fix", entry.fix), ("origin", entry.origin)):
        console.print(Padding(Text.assemble((f"{title:<8}", "bold"), text), (0, 0, 0, 2)))
    if entry.warning:
        console.print(
            Padding(
                Text("This is a warning: it is reported, but does not make the verdict wrong.", style="dim"),
                (0, 0, 0, 2),
            )
        )
    console.print("\nAn example that runs (regard explain-mistake NAME --code prints it alone):\n")
    program = example_program(entry)
    # Code is not wrapped: where the terminal is too narrow, or the output is a file, it takes its own width.
    wide = Console(highlight=False, width=max(console.width, 4 + max(map(len, program.splitlines()))))
    wide.print(Padding(Syntax(program, "python", background_color="default"), (0, 0, 0, 2)))
