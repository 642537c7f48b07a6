"""The learner's progress: one JSON file in the folder of the lesson files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from regard.support.files import (
    MAX_CONFIG_BYTES,
    FileError,
    atomic_write,
    naming_errors,
    parse_object,
    read_text,
)
from regard.support.plain_data import read_record

NAME = "regard-progress.json"


class ProgressFileError(FileError):
    """The file of a learner's progress cannot be used."""


@dataclass
class LearnerProgress:
    """Which lessons are done, on which day, and which mistakes were met on the way and in the bug hunt."""

    done: dict[int, str] = field(default_factory=dict)  # the day, by the number of the lesson
    tries: dict[int, int] = field(
        default_factory=dict
    )  # how often it was judged, by the number of the lesson
    met: list[str] = field(default_factory=list)  # names of mistakes that the learner has made
    found: list[str] = field(default_factory=list)  # names of mistakes that the learner has found in the hunt
    puzzle: str = ""  # the mistake of the last puzzle of the hunt, until it is found
    attempts: int = 0  # answers to that puzzle so far
    # What the last hints of a lesson were for, by its number: asked about the same again, they say more.
    hinted: dict[int, list[str]] = field(default_factory=dict)


def read_progress(folder: Path) -> LearnerProgress:
    """Return the progress that a folder holds; none yet if there is no file."""
    path = folder / NAME
    if not path.exists():
        return LearnerProgress()
    text = read_text(path, ProgressFileError, "the file of a learner", MAX_CONFIG_BYTES)
    with naming_errors(path, ProgressFileError, advice="; repair the file or move it away"):
        progress: LearnerProgress = read_record(LearnerProgress, parse_object(text))
    return progress


def write_progress(folder: Path, progress: LearnerProgress) -> None:
    """Write the progress to its file, atomically."""
    with atomic_write(folder / NAME) as path:
        path.write_text(json.dumps(asdict(progress), indent=2) + "\n", encoding="utf-8")
