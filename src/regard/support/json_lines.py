"""Files of JSON lines: written line by line while something runs, and read whatever it was killed at."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from regard.support.files import Kind, open_file, parse_object

MAX_LINE = 1 << 26  # bytes of one line: a record of 100,000 heads needs a quarter of it


def append_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Append lines in one write, so that a kill leaves whole lines and at most one that is cut off.

    An OSError names the file.
    """
    text = "".join(json.dumps(line) + "\n" for line in lines)
    try:
        with path.open("ab+") as file:
            # What an earlier run was killed at would become one line with the first of these.
            end = file.seek(0, os.SEEK_END)
            file.seek(max(end - 1, 0))
            if end and file.read(1) != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
            file.write(text.encode())
    except OSError as error:
        raise OSError(f"cannot write to {path}: {error.strerror or error}") from None


def read_lines(path: Path, kind: Kind, contents: str, *, finite: bool = True) -> Iterator[dict[str, Any]]:
    """The objects in a file, in their order; a last line that a kill cut off is left out.

    `contents` says what it should hold, and `kind` is raised for a line that is none. Numbers may be NaN or
    infinite if they need not be `finite`.
    """
    with open_file(path, kind, contents) as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b""), start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield parse_object(line.decode(), finite=finite)
            except ValueError as error:
                raise kind(f"{path}, line {number}: {error}") from None
