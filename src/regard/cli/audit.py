"""`regard audit`: does a model, on a batch, read what it should?"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.parts.options import AsJson, MaskPage
from regard.cli.parts.verdict import EXIT_CODES, end_with

if TYPE_CHECKING:
    from regard.auditor.result import Audit

MAKE = "A function without arguments that returns (model, batch), or a Trainer of Transformers or TRL."


def audit(
    target: Annotated[str, typer.Argument(metavar="FILE.py:make", help=MAKE, show_default=False)],
    out: MaskPage = None,
    outside: Annotated[
        bool, typer.Option("--outside/--no-outside", help="Whether to change tokens and run again, too.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Audit a model on a batch: does it read what it should?

    The file is run here, as your training script is. Exit code: 0 right, 1 wrong, 2 it could not be run, 3
    undecided.

    \b
    Examples:
      regard audit train.py:make
      regard audit train.py:make --out leaks.html
    """
    result = run_audit(target, outside)
    write_page({"": result}, out)
    end_with(result, EXIT_CODES[result.verdict], as_json)


def run_audit(target: str, outside: bool) -> Audit:
    """Audit what a function in a file returns; a ValueError says why it cannot be run."""
    from regard.auditor.model_audit import audit as run
    from regard.checker.subject.locate import locate

    model, batch = _model_and_batch(locate(target), target)
    return run(model, batch, outside=outside)


def write_page(audits: dict[str, Audit], out: Path | None) -> None:
    """Write the page of audits, each under its title, if one is wanted."""
    from regard.auditor.result import write_audits

    try:
        if out is not None:
            write_audits(audits, out)
    except OSError as error:
        raise OSError(f"cannot write {out}: {error.strerror or error}") from None


def _model_and_batch(make: Any, target: str) -> tuple[Any, Any]:
    """Call a function of the user's, and return its model and batch."""
    is_function = callable(make) and not hasattr(make, "get_train_dataloader")
    try:
        made = make() if is_function else make
        if hasattr(made, "get_train_dataloader"):
            return made.model, next(iter(made.get_train_dataloader()))
    except Exception as error:  # the user's code may raise anything
        # The innermost frame: the outermost are those of this command.
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
