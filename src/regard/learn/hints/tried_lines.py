"""Trying a line that a hint would name: the learner's file is judged again with that line in it."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from regard.checker.subject.locate import import_place
from regard.learn.hints.errors import ERROR, describe_error
from regard.learn.hints.first_difference import MOST, LineDifference
from regard.learn.hints.trial_run import write_line
from regard.learn.lesson import Outcome, Task

MASK_ENTRY = re.compile(r" is (True|False) in row ")
NUMBER = re.compile(r"[\d.]+(e-?\d+)?")


def find_helping(
    task: Task, module: ModuleType, outcome: Outcome, chains: Sequence[Sequence[LineDifference]], end: float
) -> tuple[tuple[LineDifference, ...], bool] | None:
    """Return the first difference whose line makes the verdict better, and whether it makes the task right.

    Each of `chains` is what differs in one trial. Where no line alone helps, but all of a chain together
    make the task right, they are returned: two lines may be wrong in one way, as for keys and values. None
    if nothing helps until `end`, a time of `time.monotonic`.
    """
    tried: dict[LineDifference, Outcome | None] = {}
    helping: list[tuple[LineDifference, Sequence[LineDifference]]] = []
    for chain in chains:
        for difference in chain:
            if difference in tried or time.monotonic() > end:
                continue
            followed = tried[difference] = _judge_with(task, module, [difference])
            if followed is not None and _is_better(outcome, followed):
                if followed.status != "wrong":
                    return (difference,), True
                helping.append((difference, chain))
                # What was recognised as a whole is another mistake with one of its lines mended.
                if outcome.hint and followed.mistake and not outcome.mistake and 1 < len(chain) < MOST:
                    whole = _judge_with(task, module, chain)
                    if whole is not None and whole.status != "wrong":
                        return tuple(chain), True
    for chain in chains if not helping else ():
        followed = _judge_with(task, module, chain) if len(chain) > 1 and time.monotonic() < end else None
        if followed is not None and followed.status != "wrong":
            return tuple(chain), True
    # Of several that help, the one that is meant: with the others right, the same is said.
    for difference, chain in helping if len(helping) > 1 else ():
        others = [other for other in chain if other is not difference]
        alone = _judge_with(task, module, others) if others and time.monotonic() < end else None
        if alone is not None and alone.status != "wrong":
            # What a line spoils that was right before it, it is to leave as it was.
            program = Path(str(module.__file__)).read_text(encoding="utf-8")
            if f" {difference.right}\n" in re.sub(r" +#.*", "", program):
                difference = difference._replace(right="pass")
            whole = _judge_with(task, module, [*others, difference])
            is_needed = whole is not None and whole.status != "wrong"
            return (*others, difference) if is_needed else tuple(others), True
        if alone is not None and _kind(outcome) in (_kind(alone), ("", _kind(alone)[1])):
            return (difference,), False
    if outcome.mistake and len(helping) > 1:
        # Only several lines together are what is named. A mask may be right in its own way, with True where a
        # key is hidden, and no line is told then.
        chain = helping[0][1]
        if not any(MASK_ENTRY.search(each.said) for each in chain) and time.monotonic() < end:
            whole = _judge_with(task, module, chain)
            if whole is not None and whole.status != "wrong":
                return tuple(chain), True
        return None
    return ((helping[0][0],), False) if helping else None


def _is_better(before: Outcome, after: Outcome) -> bool:
    """Whether what is wrong after a line was written is less, or something that comes later."""
    if after.status != "wrong":
        return after.status != "unfinished"
    error, earlier_error = ERROR.search(after.message), ERROR.search(before.message)
    if error:
        # An error farther down is one that the first error hid.
        lines = [int(found[1]) for found in (earlier_error, error) if found and found[1]]
        return len(lines) == 2 and lines[0] < lines[1]
    return _kind(before) != _kind(after)


def _kind(outcome: Outcome) -> tuple[str, str]:
    """What is wrong, without its details.

    "it misses a leak: …" of another attention is the same, and so is "off by up to …" with another number.
    """
    return outcome.mistake, NUMBER.sub("", re.split("[:;] ", outcome.message)[0])


def _judge_with(task: Task, module: ModuleType, differences: Sequence[LineDifference]) -> Outcome | None:
    """Judge a task of the learner's file with lines written into it; None if it does not even import."""
    path = Path(str(module.__file__))
    program = path.read_text(encoding="utf-8")
    # From the end, so that a line that is inserted moves none of those that are still to be written.
    for difference in sorted({d.line: d for d in reversed(differences)}.values(), reverse=True):
        program = write_line(program, difference.line, difference.right, difference.after)
    places, name = sys.path.copy(), f"checked_{path.stem}"
    imported = sys.modules.get(name)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        copy = Path(folder) / path.name
        copy.write_text(program, encoding="utf-8")
        try:
            followed = import_place(str(copy))
            return task.outcome(getattr(followed, task.name), followed)
        except NotImplementedError:
            return None
        except Exception as error:
            return Outcome(task.name, "wrong", describe_error(error, copy))
        finally:
            sys.path[:] = places
            sys.modules.pop(name, None)
            if imported is not None:
                sys.modules[name] = imported
