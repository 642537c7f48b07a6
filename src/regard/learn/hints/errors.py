"""Errors of Python and PyTorch that learners meet: in a sentence, and with a hint by what the error says."""

from __future__ import annotations

import re
import tomllib
import traceback
from pathlib import Path

from regard.learn.wrong_ways import sentence

# An error of the learner's code in a message, with the number of its line (see `describe_error`).
ERROR = re.compile(r"^(?:It works .*: )?line (\d+), .*(Error|Exception|Warning): |^\w+Error: ", re.DOTALL)

GENERAL_DIFFERENCE = "is the first value that differs from the solution's on this input"
_TABLES = {
    name: [(pattern, sentence(hint)) for pattern, hint in pairs]
    for name, pairs in tomllib.loads(
        Path(__file__).with_name("errors.toml").read_text(encoding="utf-8")
    ).items()
}
# What fits many errors, and says less than the line to write, where that is known.
GENERAL = frozenset(hint for _, hint in _TABLES["general"])


def find_hint(message: str, in_class: bool = True) -> str:
    """Return a hint for an error message, "kind: text"; "" if none is known.

    What is said of a module is left out if the error is not `in_class`: a function has no `self`.

    >>> find_hint("NameError: name 'W_q' is not defined")
    'W_q belongs to the module: self.W_q'
    """
    for pattern, hint in _TABLES["particular"] + _TABLES["general"]:
        is_about_module = "self." in hint or "__init__" in hint
        if (in_class or not is_about_module) and (found := re.search(pattern, message)):
            return found.expand(hint) if "\\" in hint else hint
    return ""


def describe_error(error: BaseException, path: Path) -> str:
    """Return an error of the learner's code in a sentence, with the last line of the file that it passed."""
    # By the name of the file: the frames of PyTorch and of the judge are not what the learner wrote.
    lines = [
        frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).name == path.name
    ]
    text = (str(error).strip().splitlines() or [""])[0]
    where = f"line {lines[-1].lineno}, {str(lines[-1].line).split('  #')[0].rstrip(':')}: " if lines else ""
    # An error of PyTorch may print whole tensors.
    return f"{where}{type(error).__name__}: {text}"[:400]
