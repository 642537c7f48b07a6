"""Run the commands in README.md and in some of the docs, and write what they print.

    python -m scripts.sessions            rewrite the files
    python -m scripts.sessions --check    exit with 1 if what they show is out of date

A block of Python that begins with a comment such as # head.py is a file. A console block has commands, each
after "$ ", and their output, in a terminal of 100 columns; a bash block is not run. Seconds, percentages and
the digits of distances differ from machine to machine and are not compared. `tests/test_docs.py` fails if a
file is out of date.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from typer.testing import CliRunner

from regard.cli import app
from regard.support.files import atomic_write

ROOT = Path(__file__).parent.parent
VISIBILITY = ROOT / "docs" / "testing-kernels.md"
DOCUMENTS = (
    ROOT / "README.md",
    ROOT / "docs" / "check.md",
    ROOT / "docs" / "heads.md",
    ROOT / "docs" / "how-to" / "is-my-packing-isolated.md",
    VISIBILITY,
)
_FILE = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run_sessions(text: str) -> str:
    """Return a document with the output of its commands made anew, unless only seconds or digits differ."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), restored_imports():
        for name, source in _FILE.findall(text):
            Path(name).write_text(source, encoding="utf-8")
        return _CONSOLE.sub(_run_block, text)


@contextlib.contextmanager
def restored_imports() -> Iterator[None]:
    """Forget the files that are imported inside the block: `regard audit` imports them in this process."""
    places, modules = sys.path.copy(), set(sys.modules)
    try:
        yield
    finally:
        sys.path[:] = places
        for name in set(sys.modules) - modules:
            if name.startswith("checked_"):
                del sys.modules[name]


def _run_block(block: re.Match[str]) -> str:
    commands = [line[2:] for line in block[1].splitlines() if line.startswith("$ ")]
    shown = "".join(f"$ {command}\n{_run(command)}" for command in commands)
    return block[0] if comparable(shown) == comparable(block[1]) else f"```console\n{shown}```"


def _run(command: str) -> str:
    """Return what a command of Regard prints."""
    program, *words = shlex.split(command)
    if program != "regard":
        raise ValueError(f"expected a command of regard, got {command!r}")
    shown = CliRunner(env={**os.environ, "COLUMNS": "100"}).invoke(app, words)
    if shown.exception is not None and not isinstance(shown.exception, SystemExit):
        raise shown.exception
    return "\n".join(line.rstrip() for line in shown.output.splitlines()).rstrip("\n") + "\n"


def comparable(shown: str) -> str:
    """Return an output without what differs from machine to machine: seconds and the digits of numbers."""
    shown = re.sub(r"^  \d+\.\d s$", "  … s", shown, flags=re.MULTILINE)
    shown = re.sub(r"\b\d+ ?%", "# %", shown)
    return re.sub(r"\b\de\d\b", "#e#", shown)


def main() -> None:
    """Rewrite the documents, or check them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if out of date")
    check = parser.parse_args().check
    stale = []
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        if (current := run_sessions(text)) != text:
            stale.append(path.name)
            if not check:
                with atomic_write(path) as temporary:
                    temporary.write_text(current, encoding="utf-8")
    if check and stale:
        sys.exit(f"{', '.join(stale)}: out of date; run python -m scripts.sessions")


if __name__ == "__main__":
    main()
