"""Atomic file writes: an interrupted write leaves the previous file unchanged."""

from __future__ import annotations

import errno
import glob
import os
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
    """Yield a temporary path in the same folder, which replaces `path` if the block raises no exception."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o666 & ~_umask())  # mkstemp lets only the owner read
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_temporary_files(path: Path) -> None:
    """Delete what `atomic_write` left of `path` in a process that was killed, and no other file."""
    for file in path.parent.glob(f".{glob.escape(path.name)}.{'[a-z0-9_]' * 8}"):  # as mkstemp names them
        if file.is_file():
            file.unlink(missing_ok=True)


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


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
