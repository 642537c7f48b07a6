"""The command `regard`. Each command is a thin file of its own: one import and one line here add it.

This floor knows commands and messages; it does not know how anything is computed.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from regard.cli import (
    ablate,
    audit,
    cache,
    check,
    conformance,
    data,
    explain_mistake,
    generate,
    heads,
    inspect,
    learn,
    masks,
    mutate,
    reproduce,
    stages,
    survey,
    train,
)
from regard.cli.parts import welcome
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

app = typer.Typer(
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# The short help is the line of a command in `regard --help`, which would cut a longer one.
app.command(short_help="Cut heads of a model: what changes?")(ablate.ablate)
app.command(short_help="Say whether a model reads what it should on a batch.")(audit.audit)
app.command(short_help="Show what cache policies lose of the attention.")(cache.cache)
app.command(
    short_help="Say whether an attention is right, or what is wrong.",
    # --with takes one word; what follows it, as `d_model=64 num_heads=4`, arrives as extra arguments.
    context_settings={"allow_extra_args": True},
)(check.check)
app.add_typer(
    conformance.app, name="conformance", short_help="Cases for any language, and the judge of its results."
)
app.command(short_help="Fetch a text or a model from the package index.")(data.data)
app.command("explain-mistake", short_help="Explain one mistake, with an example that runs.")(
    explain_mistake.explain_mistake
)
app.command(short_help="Continue a text with a small GPT.")(generate.generate)
app.command(short_help="List what every head of a model does.")(heads.heads)
app.command(short_help="Show what every head of a model attends to.")(inspect.inspect)
app.command(short_help="Learn attention by writing it, lesson by lesson.")(learn.learn)
app.command(short_help="Draw the masks of a model's layers on a batch.")(masks.masks)
app.command(short_help="Count the mistakes that a test suite notices.")(mutate.mutate)
app.command(short_help="Run published results again: what holds?")(reproduce.reproduce)
app.command(short_help="Show the stages of attention, with numbers.")(stages.stages)
app.command(short_help="Score every head over a whole corpus.")(survey.survey)
app.command(short_help="Train a small GPT on a text.")(train.train)


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
