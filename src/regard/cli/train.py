"""`regard train`: train a small GPT on a text."""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import typer
from torch import distributed

from regard.gpt import GPT
from regard.gpt.config import Config
from regard.gpt.training.corpus import prepare, python_documentation, read
from regard.gpt.training.run_folder import check_folder
from regard.gpt.training.settings import TrainingSettings
from regard.gpt.training.train import train as run
from regard.monitor import Monitor
from regard.support.characters import escape
from regard.support.processes import is_main_process

READINGS = "attention.jsonl"  # the file in a run's folder that its monitor writes


def train(
    *,
    corpus: Path | None,
    out: Path,
    resume: bool,
    vocab_size: int | None,
    device: str | None,
    **given: Any,
) -> None:
    """Train a small GPT; `given` are settings of the training and sizes of the model, by their names."""
    settings = TrainingSettings(
        **{x.name: given[x.name] for x in fields(TrainingSettings) if x.name in given}
    )
    # The other ranks wait in `train` until rank 0 owns the folder; all of them asking would lock one another
    # out.
    if is_main_process():
        check_folder(out)  # before the text is read and its tokens are learned
    text = python_documentation() if corpus is None else read(corpus)
    prepared = prepare(text, given["context_length"], vocab_size)
    # As in GPT-2, the token that begins a text also ends the one before it.
    end = () if prepared.bos_token_id is None else (prepared.bos_token_id,)
    sizes = {x.name: given[x.name] for x in fields(Config) if x.name in given}
    config = Config(**sizes | {"vocab_size": prepared.vocab_size, "eos_token_id": end})
    # `--compile` compiles the loss with the model in it: a monitor's wrapper would break that graph.
    watch = None if settings.compile else partial(_watch, out)
    result = run(config, prepared, out, settings, resume=resume, device=device, watch=watch)
    if not result.finished:
        again = shlex.join(["regard", *(word for word in sys.argv[1:] if word != "--resume"), "--resume"])
        with suppress(OSError):  # the terminal may be gone
            typer.echo(escape(f"stopped at step {result.step} and saved; go on with: {again}"), err=True)
        # 130 is what a shell reports after Ctrl-C; a scheduler can tell a stopped run from a failed one.
        raise typer.Exit(130)
    # Half of the context, so that a prompt of the other half fits.
    sample = (
        f"regard generate --model {shlex.quote(str(out))} --tokens {min(100, config.context_length // 2)}"
    )
    typer.echo(
        f'best validation loss {result.best_loss:.4f} after {result.step} steps; try: {escape(sample)} "…"',
        err=True,
    )


def _watch(folder: Path, model: GPT) -> Monitor:
    """Return a monitor of a run, which warns of scores that explode and entropy that collapses."""
    group = distributed.group.WORLD if distributed.is_initialized() else None
    return Monitor(model, file=folder / READINGS, group=group, quiet=True)
