"""The command `regard`. Each command is a thin file of its own, and a table of `commands.toml`.

This floor knows commands and messages; it does not know how anything is computed.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from regard.cli.parts import welcome
from regard.cli.parts.command_table import add_commands, new_group
from regard.cli.parts.signals import unwind_on_signals
from regard.support.characters import escape
from regard.support.imports import MissingExtraError
from regard.version import __version__

# \b keeps Click from joining the lines of the list into one paragraph.
EXAMPLES = """\b
Examples:
  regard inspect                      see what the heads of a model attend to
  regard heads                        what every head does, in a table
  regard ablate --head 5.3            what changes if a head is cut
  regard cache --policy h2o,snapkv    what a cache of bounded size loses
  regard check file.py:MyAttention    is it right, and if not, what is wrong?
  regard audit train.py:make          does the model read what it should?
  regard learn 0                      learn attention by writing it
  regard stages                       walk through attention, stage by stage
  regard stages --save stages.png     and keep the picture
  regard train book.txt --out book    train a small GPT on a text
  regard generate "The sea was"       continue a text with a small GPT
"""

app = new_group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
add_commands(app)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"regard {__version__}")
        raise typer.Exit


@app.callback(help=f"{welcome.PROMISE}\n\n{EXAMPLES}")
def regard(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Take the options before any command, and greet if there is none."""
    if context.invoked_subcommand is None:
        welcome.greet()


def main() -> None:
    """Run the command. A user's mistake is answered in one line, without a traceback."""
    try:
        with unwind_on_signals():
            app(prog_name="regard")
    # Any other exception is a bug of ours and keeps its traceback, which belongs into a report.
    except (ValueError, OSError, MissingExtraError) as error:
        print(f"regard: {escape(str(error))}", file=sys.stderr)
        sys.exit(2)
