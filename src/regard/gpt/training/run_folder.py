"""The folder of a training run: whether a run can use it, and the lock by which one run owns it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from regard.support.file_lock import FileLock
from regard.support.files import check_folder_writable, write_error
from regard.support.processes import Processes

LOCK = ".lock"  # the file in a run's folder that its owner locks


def check_folder(folder: Path) -> None:
    """Raise an error, before any work is done, if a run cannot use a folder now."""
    if folder.exists():
        _take_folder(folder).release()
    else:
        _check_path(folder)
        check_folder_writable("out", folder.absolute().parent)


@contextmanager
def owned_folder(folder: Path, ranks: Processes) -> Iterator[FileLock | None]:
    """Own the folder of a run inside the block: rank 0 does, for all ranks, and gets the lock."""
    with ExitStack() as stack:
        yield ranks.on_main(lambda: stack.enter_context(_take_folder(folder)))


def _take_folder(folder: Path) -> FileLock:
    """Create the folder of a run if need be, and lock it; an error says why a run cannot use it."""
    _check_path(folder)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise write_error("out", folder, error) from None
    check_folder_writable("out", folder)
    return FileLock(folder / LOCK, "out", folder)


def _check_path(folder: Path) -> None:
    """Raise a ValueError unless a path is a folder, or can become one."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"out: expected a folder, got the file {folder}")
    if not folder.absolute().parent.is_dir():
        raise ValueError(
            f"out: expected a folder whose parent exists: create {folder.absolute().parent} first"
        )
