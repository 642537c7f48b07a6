"""`regard audit`: does a model, on a batch, read what it should?"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from regard.auditor.model_audit import audit as run
from regard.auditor.result import Audit, write_audits
from regard.checker.subject.locate import locate
from regard.cli.parts.output import EXIT_CODES, end_with


def audit(*, target: str, out: Path | None, outside: bool, as_json: bool) -> None:
    """Audit a model on a batch: does it read what it should?"""
    result = run_audit(target, outside)
    write_page({"": result}, out)
    end_with(result, EXIT_CODES[result.verdict], as_json)


def run_audit(target: str, outside: bool) -> Audit:
    """Audit what a function in a file returns; a ValueError says why it cannot be run."""
    model, batch = _model_and_batch(locate(target), target)
    return run(model, batch, outside=outside)


def write_page(audits: dict[str, Audit], out: Path | None) -> None:
    """Write the page of audits, each under its title, if one is wanted."""
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
