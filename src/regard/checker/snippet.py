"""A few lines of a right program with the wrong ones marked, for `regard explain-mistake`.

A snippet is cut from the template and the planted program that the tests run: the lines that differ, the
headers around them, and the steps of attention as far as there is room.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Iterable
from typing import NamedTuple

from regard.checker.examples import mended_program, plant_mistake
from regard.checker.mistake import Mistake

LENGTH = 12  # lines, unless the mistake itself has more
# The steps of attention, the most telling first.
_STEPS = (
    r"softmax\(",
    r"@ k\.|k\.mT|einsum",
    r"@ v\b",
    r"scores\.masked_fill\(~",
    r"/ math\.sqrt|D\*\*",
    r"\breturn\b",
)

_OPENS_BLOCK = re.compile(r":\s*(#.*)?$")


class SnippetLine(NamedTuple):
    """A line of a snippet: "+" if only the right program has it, "-" if only the wrong one, " " if both."""

    mark: str
    text: str


def clearest_kind(mistake: Mistake, kinds: Iterable[str]) -> str:
    """Return the template, of some, that shows a mistake best."""
    return min(kinds, key=lambda kind: _clarity(_compare(mistake, kind)))


def make_snippet(mistake: Mistake, kind: str | None = None) -> list[SnippetLine]:
    """Return a template, or the clearest one, abridged, with the lines that differ marked."""
    lines = _compare(mistake, kind or clearest_kind(mistake, mistake.plants))
    changed = [i for i, line in enumerate(lines) if line.mark != " "]
    kept = set(changed)
    for i in changed:
        kept |= _headers(lines, i)
    for i in (*_definitions(lines, changed), *_steps(lines, changed), *_neighbours(lines, changed)):
        headers = _headers(lines, i)
        more = kept | {i, *headers}
        # An `elif` or `else` without its `if` would read as another program.
        alternative = any(lines[j].text.strip().startswith(("elif ", "else:")) for j in headers)
        if _is_complete(lines, i) and not alternative and len(more) <= LENGTH:
            kept = more
    chosen = [lines[i] for i in sorted(kept)]
    texts = textwrap.dedent("\n".join(line.text for line in chosen)).split("\n")
    return [SnippetLine(line.mark, text) for line, text in zip(chosen, texts, strict=True)]


def _compare(mistake: Mistake, kind: str) -> list[SnippetLine]:
    """Return the lines of a template and of the planted program, in one sequence, without empty ones."""
    wrong, right = plant_mistake(mistake, kind).splitlines(), mended_program(mistake, kind).splitlines()
    lines: list[SnippetLine] = []
    # Autojunk would ignore the lines that occur often in a program of 200 lines or more.
    matcher = difflib.SequenceMatcher(None, wrong, right, autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            lines += [SnippetLine(" ", text) for text in wrong[a:b]]
        else:
            lines += [SnippetLine("-", text) for text in wrong[a:b]]
            lines += [SnippetLine("+", text) for text in right[c:d]]
    return [line for line in lines if line.text.strip()]


def _clarity(lines: list[SnippetLine]) -> tuple[bool, int]:
    """Return a sort key: first the snippets with a wrong line and its right one, then the shortest."""
    marks = [line.mark for line in lines]
    return not {"-", "+"} <= set(marks), len(marks) - marks.count(" ")


def _headers(lines: list[SnippetLine], index: int) -> set[int]:
    """Return the lines that open the blocks around a line: `if …:`, `def …:`; not the class."""
    headers, indent = set(), _indent(lines[index])
    for i in range(index - 1, -1, -1):
        if _indent(lines[i]) < indent and _OPENS_BLOCK.search(lines[i].text):
            indent = _indent(lines[i])
            if not lines[i].text.startswith("class "):
                headers |= set(range(_first_line(lines, i), i + 1))
    return headers


def _first_line(lines: list[SnippetLine], index: int) -> int:
    """Return where a header begins, which may be several lines long."""
    if not lines[index].text.strip().startswith(")"):
        return index
    return max(i for i in range(index) if re.match(r"\s*def ", lines[i].text))


def _function(lines: list[SnippetLine], index: int) -> int:
    """Return the line that begins the function around a line."""
    return max((i for i in range(index + 1) if re.match(r"\s*def ", lines[i].text)), default=0)


def _steps(lines: list[SnippetLine], changed: list[int]) -> list[int]:
    """Return the steps of attention, the most telling first: in the changed functions, or else in all."""
    steps = [i for step in _STEPS for i, line in enumerate(lines) if re.search(step, line.text)]
    functions = {_function(lines, i) for i in changed}
    # A constructor has no step of attention, so that those of the other functions say what it is about.
    if all("__init__" in lines[i].text for i in functions):
        return steps
    return [i for i in steps if _function(lines, i) in functions]


def _neighbours(lines: list[SnippetLine], changed: list[int]) -> list[int]:
    """Return the unchanged lines around the changed ones, in the same function, the nearest first."""
    near = [
        (min(abs(i - j) for j in changed if _function(lines, i) == _function(lines, j)), i)
        for i, line in enumerate(lines)
        if line.mark == " " and _function(lines, i) in {_function(lines, j) for j in changed}
    ]
    return [i for _, i in sorted(near)]


def _definitions(lines: list[SnippetLine], changed: list[int]) -> list[int]:
    """Return the lines before the changed ones that define the names used there, apart from the steps'."""
    names = {name for i in changed for name in re.findall(r"\b\w+\b", lines[i].text)}
    functions = {_function(lines, i) for i in changed}
    earlier = [i for i in range(changed[-1]) if lines[i].mark == " " and _function(lines, i) in functions]
    found = []
    for name in sorted(names - {"q", "k", "v", "scores", "weights", "out", "x", "B", "T", "C"}):
        pattern = re.compile(rf"\s*[\w, ]*\b{re.escape(name)}\b[\w, ]*=[^=]")
        found += [i for i in earlier if pattern.match(lines[i].text) and _is_complete(lines, i)][-1:]
    return found


def _is_complete(lines: list[SnippetLine], index: int) -> bool:
    """Return whether a line stands for itself: it opens no block, and is no part of a longer statement."""
    text = lines[index].text.strip()
    opened = text[-1] in ",(" or _OPENS_BLOCK.search(text) or text.count("(") != text.count(")")
    inside = index and lines[index - 1].text.rstrip()[-1] in ",("
    return not opened and not inside


def _indent(line: SnippetLine) -> int:
    return len(line.text) - len(line.text.lstrip())
