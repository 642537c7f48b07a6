"""Checkpoint files: safetensors files that carry the SHA-256 of all their bytes, each with its predecessor.

A new checkpoint is written beside the old one, which then becomes the previous one, `path` + ".previous".
Whenever the process is killed, a complete checkpoint is there. One that is damaged is noticed, and the
previous one is read in its place. This file does not know what a checkpoint holds.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

from safetensors import SafetensorError
from torch import Tensor

from regard.support.files import FileError, Kind, is_present, open_file, remove_temporary_files
from regard.support.safetensor_files import (
    SafetensorContent,
    SafetensorFile,
    read_safetensors,
    write_safetensors,
)

T = TypeVar("T")
CHECKSUM = "sha256"
MARK = f'"{CHECKSUM}":"'.encode()  # stands before the checksum in the file's header, and nowhere else
BLANK = b"0" * 64  # stands for the checksum in the bytes that it is computed from
CHUNK = 1 << 20
MAX_HEADER = 100_000_000  # bytes, as the library for safetensors has it


class Checksum(NamedTuple):
    """The checksum that a file carries, the one that its bytes have, and the position of the first."""

    stored: bytes
    computed: bytes
    position: int


def previous(path: Path) -> Path:
    """The file of the checkpoint before the one in `path`."""
    return path.with_name(f"{path.name}.previous")


def _unfinished(path: Path) -> Path:
    """The file of a checkpoint that is being written."""
    return path.with_name(f".{path.name}.new")


def save(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a checkpoint to `path`; the one that was there becomes the previous one, if it is undamaged.

    An OSError says why it could not be written; the checkpoints that were there are then unchanged.
    """
    new = _unfinished(path)
    try:
        write_safetensors(new, tensors, {**metadata, CHECKSUM: BLANK.decode()})
        _write_checksum(new)
        # A damaged file would otherwise replace the last good one, and the next kill would leave none.
        if path.exists() and _damage(path) is None:
            os.replace(path, previous(path))
        os.replace(new, path)
    except (SafetensorError, OSError, ValueError) as error:
        new.unlink(missing_ok=True)
        raise OSError(f"cannot write a checkpoint to {path.parent}: {error}") from None


def load(
    path: Path, file_format: str, parse: Callable[[SafetensorContent], T], kind: Kind
) -> tuple[T, str | None] | None:
    """The newest checkpoint that is good, and what is wrong with a newer one; None if there is none at all.

    `parse` makes of a file's content what the caller needs; a ValueError of its means damage, too. If every
    checkpoint is damaged, an error of type `kind` says so.
    """
    problems: list[str] = []
    for file in (path, previous(path)):
        if not is_present(file):
            continue
        if (damage := _damage(file)) is None:
            try:
                content = parse(read_safetensors(file, [file_format], kind))
            except ValueError as error:
                damage = str(error)
            else:
                used = f"; {file}, the checkpoint before it, is used instead"
                return content, problems[0] + used if problems else None
        problems.append(f"{file} is not a checkpoint that can be read: {damage}")
    if problems:
        raise kind("; ".join(problems))
    return None


def remove(path: Path) -> None:
    """Delete the checkpoints of `path`, and what a process that was killed has left of one."""
    for file in (path, previous(path)):
        file.unlink(missing_ok=True)
    remove_unfinished(path)


def remove_unfinished(path: Path) -> None:
    """Delete what a process that was killed while it saved a checkpoint has left."""
    new = _unfinished(path)
    new.unlink(missing_ok=True)
    remove_temporary_files(path.parent, glob.escape(new.name))


def _damage(path: Path) -> str | None:
    """What is wrong with the bytes of a checkpoint; None if they have the checksum that it carries."""
    try:
        # The header must account for every byte before they are all read: a sparse file may have any size.
        SafetensorFile(path, FileError)
        with open_file(path, FileError, "a checkpoint") as file:
            checksum = _read_checksum(file)
    except (OSError, ValueError) as error:
        return str(error)
    if checksum.stored != checksum.computed:
        return "its bytes do not have the checksum that they had when it was written"
    return None


def _write_checksum(path: Path) -> None:
    """Put the checksum in its place in a file that was written with a blank one."""
    with path.open("r+b") as file:
        checksum = _read_checksum(file)
        file.seek(checksum.position)
        file.write(checksum.computed)
        file.flush()
        os.fsync(file.fileno())


def _read_checksum(file: BinaryIO) -> Checksum:
    """The checksum of an open file, read and computed; a ValueError if it carries none."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    header_bytes = int.from_bytes(file.read(8), "little")
    if not 0 < header_bytes <= min(size - 8, MAX_HEADER):
        raise ValueError(
            f"expected a header within its {size} bytes, of at most {MAX_HEADER}, got one of {header_bytes}"
        )
    file.seek(0)
    header = file.read(8 + header_bytes)
    before, mark, after = header.partition(MARK)
    if not mark:
        raise ValueError("it carries no checksum")
    position, end = len(before) + len(mark), len(before) + len(mark) + len(BLANK)
    # The checksum cannot cover itself, so that its 64 characters count as zeros in both directions.
    hashing = hashlib.sha256(header[:position] + BLANK + header[end:])
    while chunk := file.read(CHUNK):
        hashing.update(chunk)
    return Checksum(after[: len(BLANK)], hashing.hexdigest().encode(), position)
