"""`regard audit` and `regard masks`: what does a model read on a batch?"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.parts.signals import allow_closed_pipe
from regard.escapes import escape

if TYPE_CHECKING:
    from regard.auditor.result import Audit

MAKE = "A function without arguments that returns (model, batch), or a Trainer of Transformers or TRL."


def audit(
    target: Annotated[str, typer.Argument(metavar="FILE.py:make", help=MAKE, show_default=False)],
    out: Annotated[
        Path | None, typer.Option(metavar="PAGE.html", help="Also write a page with a picture of each mask.")
    ] = None,
    outside: Annotated[
        bool, typer.Option("--outside/--no-outside", help="Whether to change tokens and run again, too.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Audit a model on a batch: does it read what it should?

    The file is run here, as your training script is. Exit code: 0 right, 1 wrong, 2 it could not be run, 3
    undecided.

    \b
    Examples:
      regard audit train.py:make
      regard audit train.py:make --out leaks.html
    """
    from regard.auditor.result import EXIT_CODES

    result = _audit(target, outside)
    _write(result, out)
    with allow_closed_pipe():
        typer.echo(escape(result.to_json()) if as_json else str(result))
    raise typer.Exit(EXIT_CODES[result.verdict])


def masks(
    target: Annotated[str, typer.Argument(metavar="FILE.py:make", help=MAKE, show_default=False)],
    out: Annotated[
        Path | None, typer.Option(metavar="PAGE.html", help="Also write a page with a picture of each mask.")
    ] = None,
) -> None:
    """Draw the mask of every kind of layer of a model on a batch.

    \b
    Examples:
      regard masks train.py:make
    """
    from regard.auditor.inside import layer_keys
    from regard.auditor.picture import LEGEND, terminal_picture

    result = _audit(target, outside=False)
    _write(result, out)
    with allow_closed_pipe():
        for layers in result.groups():
            word = "layer" if len(layers) == 1 else "layers"
            unjudged = "" if layers[0].expected else "; not compared with what it should see"
            typer.echo(escape(f"{word} {layer_keys(layers)}: {layers[0].mask}{unjudged}"))
            typer.echo(f"{terminal_picture(layers[0])}\n")
        typer.echo(LEGEND)
        for sentence in result.not_heard:
            typer.echo(escape(sentence))


def _audit(target: str, outside: bool) -> Audit:
    from regard.auditor.model_audit import audit as run
    from regard.checker.errors import CheckError
    from regard.checker.subject.construction.locate import locate

    try:
        model, batch = _model_and_batch(locate(target), target)
        return run(model, batch, outside=outside)
    except (CheckError, ValueError) as error:
        typer.echo(f"regard: {escape(str(error))}", err=True)
        raise typer.Exit(2) from None


def _write(result: Audit, out: Path | None) -> None:
    """Write the page, if one is wanted."""
    try:
        if out is not None:
            result.to_html(out)
    except OSError as error:
        typer.echo(f"regard: cannot write {escape(str(out))}: {error.strerror or error}", err=True)
        raise typer.Exit(2) from None


def _model_and_batch(make: Any, target: str) -> tuple[Any, Any]:
    """Call a function of the user's, and return its model and batch."""
    is_function = callable(make) and not hasattr(make, "get_train_dataloader")
    try:
        made = make() if is_function else make
        if hasattr(made, "get_train_dataloader"):
            return made.model, next(iter(made.get_train_dataloader()))
    except Exception as error:  # the user's code may raise anything
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise ValueError(
            f"{target} raised {type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        ) from error
    if isinstance(made, tuple) and len(made) == 2:
        return made
    raise ValueError(
        f"{target}: expected (model, batch) or a Trainer, got {type(made).__name__}: write a function "
        "without arguments that returns your model and one batch of your loader, "
        "as `def make(): return model, next(iter(loader))`"
    )
