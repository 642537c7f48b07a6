"""Atomic file writes: an interrupted write leaves the previous file unchanged."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REASONS = {
    errno.EACCES: "which is read-only for this user",
    errno.EPERM: "which is read-only for this user",
    errno.EROFS: "which is on a read-only file system",
    errno.ENOSPC: "where no space is left",
    errno.EDQUOT: "where no space is left in this user's quota",
}


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, which replaces `path` if the block raises no exception.

    It is in a folder of its own beside `path`, where libraries may put temporary files of theirs too. If the
    process is killed, that folder stays until `remove_temporary_files`.
    """
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        temporary = folder / path.name
        temporary.touch()
        mode = temporary.stat().st_mode
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(mode)  # a library may have put a file there that only the owner can read
        os.replace(temporary, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_temporary_files(folder: Path, pattern: str) -> None:
    """Delete what `atomic_write` left of files whose names match a pattern, in processes that were killed."""
    for leftover in folder.glob(f".{pattern}.{'[a-z0-9_]' * 8}"):  # as mkdtemp names them
        shutil.rmtree(leftover, ignore_errors=True)  # a file of this name is not ours, and stays


def check_folder_writable(name: str, folder: Path) -> None:
    """Raise an OSError, before any work is done, unless a file can be written to a folder.

    `name` is the argument that the message begins with. A file is written, since permission bits do not tell.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\n")
            file.flush()
    except OSError as error:
        raise write_error(name, folder, error) from None


def write_error(name: str, place: Path, error: OSError) -> OSError:
    """The error that says why nothing can be written to `place`, which is the argument `name`."""
    reason = REASONS.get(error.errno or 0, f"which cannot be written to: {error.strerror or error}")
    return OSError(f"{name}: expected a place that can be written to, got {place}, {reason}")
