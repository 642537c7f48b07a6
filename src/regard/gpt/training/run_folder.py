"""The folder of a training run: whether a run can use it, its lock, and the checkpoint to resume from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from regard.attention.arguments import check_whole_number
from regard.gpt.training import checkpoints, history
from regard.gpt.training.checkpoints import Checkpoint
from regard.support.file_lock import FileLock
from regard.support.files import (
    RunFileError,
    check_folder_writable,
    get_field,
    make_folder,
    naming_errors,
    shorten,
)
from regard.support.processes import Processes

LOCK = ".lock"  # the file in a run's folder that its owner locks


def check_folder(folder: Path) -> None:
    """Raise an error, before any work is done, if a run cannot use a folder now."""
    if folder.exists():
        _take_folder(folder).release()
    else:
        check_folder_writable("out", next(parent for parent in folder.absolute().parents if parent.exists()))


@contextmanager
def owned_folder(folder: Path, ranks: Processes) -> Iterator[None]:
    """Own the folder of a run inside the block: rank 0 does, for all ranks."""
    with ExitStack() as stack:
        ranks.on_main(lambda: stack.enter_context(_take_folder(folder)) and None)
        yield


def _take_folder(folder: Path) -> FileLock:
    """Create the folder of a run if need be, and lock it; an error says why a run cannot use it."""
    make_folder("out", folder)
    check_folder_writable("out", folder)
    return FileLock(folder / LOCK, "out", folder)


def find_checkpoint(folder: Path, arguments: dict[str, Any], resume: bool) -> Checkpoint | None:
    """The checkpoint of a run with these arguments, if there is one to resume from.

    A ValueError refuses to overwrite another run or model, and to resume with other arguments.
    """
    checkpoint = checkpoints.load(folder)
    if checkpoint is None:
        if folder.is_dir() and any(folder.glob("model*.safetensors")):
            raise ValueError(f"out: {folder} holds a model but no run to resume: choose another folder")
        for name in (history.METRICS_FILE, history.HEADS_FILE):
            if os.path.lexists(folder / name):  # a run saves a checkpoint before its history begins
                raise ValueError(
                    f"out: {folder} holds {name} of another run but no checkpoint to resume from: "
                    "choose another folder"
                )
        return None
    state = checkpoint.state
    _check_state(state, folder)
    if not resume:
        raise ValueError(
            f"out: {folder} holds a run at step {state['step']}: "
            "add --resume to continue it, or choose another folder"
        )
    for name, value in arguments.items():
        if (started_with := state["arguments"].get(name)) != value:
            raise RunFileError(
                f"{name}: expected {shorten(started_with)}, with which the run in {folder} was started, "
                f"got {value!r}"
            )
    return checkpoint


def _check_state(state: dict[str, Any], folder: Path) -> None:
    """Raise a `RunFileError` that names the first field of a checkpoint's state that cannot be."""
    with naming_errors(folder / checkpoints.FILE, RunFileError):
        check_whole_number("step", state.get("step"), 0)
        check_whole_number("evaluated_step", state.get("evaluated_step"), -1)
        for name in ("seconds", "warmup_seconds"):
            get_field(state, name, float)
        if state.get("best_loss", False) is not None:
            get_field(state, "best_loss", float)
        get_field(state, "arguments", dict)
