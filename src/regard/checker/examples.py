"""Right programs, those with a mistake of the catalogue planted in them, and tests of what they should do.

The programs are those of `programs.toml`. `regard explain-mistake` shows their text, and so the program that
it runs: a snippet has the lines that differ between a program and the one with a mistake, the headers around
them, and the nearest lines of the same function as far as there is room. Each property of `properties.toml`
is one test, in a version for every template to which it applies.
"""

from __future__ import annotations

import contextlib
import difflib
import linecache
import re
import sys
import textwrap
import tomllib
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from regard.checker.catalogue import Mistake, Swap

_FOLDER = Path(__file__).parent
_PROGRAMS = tomllib.loads((_FOLDER / "programs.toml").read_text(encoding="utf-8"))
CORE = _PROGRAMS["attend"]


# With the text of the core in place of its import, so that each can be shown and pasted.
KERNEL_TEMPLATES: dict[str, str] = {
    kind: text.replace("from attend import attend\n", CORE) for kind, text in _PROGRAMS["kernels"].items()
}
DISTRIBUTED_TEMPLATES: dict[str, str] = _PROGRAMS["processes"]
TEMPLATES: dict[str, str] = _PROGRAMS["modules"] | KERNEL_TEMPLATES
ALL_TEMPLATES = TEMPLATES | DISTRIBUTED_TEMPLATES  # those that run on several processes, too
# The last function or class that a template defines.
NAMES = {kind: re.findall(r"^(?:def|class) (\w+)", text, re.M)[-1] for kind, text in ALL_TEMPLATES.items()}


def plant_mistake(mistake: Mistake, kind: str) -> str:
    """Return the source of the template `kind` with a mistake in it."""
    return _swapped(mistake, kind, mistake.plants[kind])


def mended_program(mistake: Mistake, kind: str) -> str:
    """Return the source of the template `kind` without the mistake: mostly the template itself."""
    return _swapped(mistake, kind, mistake.mended.get(kind, ()))


def _swapped(mistake: Mistake, kind: str, swaps: tuple[Swap, ...]) -> str:
    text = ALL_TEMPLATES[kind]
    for old, new in swaps:
        if old not in text:
            raise ValueError(f"{mistake.name}: the {kind} template has no {old!r}")
        text = text.replace(old, new)
    return text


@contextlib.contextmanager
def loaded_program(source: str, name: str) -> Iterator[Any]:
    """Yield the function or class `name` of a program, whose source can be read as if it were a file."""
    file = f"<regard example {name}>"
    module = types.ModuleType(file)
    module.__file__ = file
    # inspect.getsource reads linecache. Without a time of modification checkcache leaves the entry alone.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    # For a class, inspect looks its module up here to find the file.
    sys.modules[file] = module
    try:
        exec(compile(source, file, "exec"), module.__dict__)
        yield getattr(module, name)
    finally:
        del sys.modules[file], linecache.cache[file]


def example_program(mistake: Mistake) -> str:
    """Return a program that contains the mistake and prints the report of `regard.check`."""
    kind = next(iter(mistake.plants))
    name, source = NAMES[kind], plant_mistake(mistake, kind)
    if kind not in DISTRIBUTED_TEMPLATES:
        return f"{source}\n\nfrom regard import check\n\nprint(check({name}))\n"
    call = f"    from regard import check\n\n    print(check({name}, processes=2))\n"
    return f'{source}\n\nif __name__ == "__main__":  # every process imports this file\n{call}'


LENGTH = 12  # lines, unless the mistake itself has more

_OPENS_BLOCK = re.compile(r":\s*(#.*)?$")


class SnippetLine(NamedTuple):
    """A line of a snippet: "+" if only the right program has it, "-" if only the wrong one, " " if both."""

    mark: str
    text: str


def clearest_kind(mistake: Mistake, kinds: Iterable[str]) -> str:
    """Return the template, of some, that shows a mistake best."""

    def clarity(kind: str) -> tuple[bool, int]:
        marks = [line.mark for line in _compare(mistake, kind)]
        # First the snippets with a wrong line and its right one, then the shortest.
        return not {"-", "+"} <= set(marks), len(marks) - marks.count(" ")

    return min(kinds, key=clarity)


def make_snippet(mistake: Mistake, kind: str | None = None) -> list[SnippetLine]:
    """Return a template, or the clearest one, abridged, with the lines that differ marked."""
    lines = _compare(mistake, kind or clearest_kind(mistake, mistake.plants))
    changed = [i for i, line in enumerate(lines) if line.mark != " "]
    kept = set(changed)
    for i in changed:
        kept |= _headers(lines, i)
    for i in _neighbours(lines, changed):
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


def _headers(lines: list[SnippetLine], index: int) -> set[int]:
    """Return the lines that open the blocks around a line: `if …:`, `def …:`; not the class."""
    headers, indent = set(), _indent(lines[index])
    for i in range(index - 1, -1, -1):
        if _indent(lines[i]) < indent and _OPENS_BLOCK.search(lines[i].text):
            indent = _indent(lines[i])
            if not lines[i].text.startswith("class "):
                # A header of several lines ends in `) -> …:`.
                first = _function(lines, i) if lines[i].text.strip().startswith(")") else i
                headers |= set(range(first, i + 1))
    return headers


def _function(lines: list[SnippetLine], index: int) -> int:
    """Return the line that begins the function around a line."""
    return max((i for i in range(index + 1) if re.match(r"\s*def ", lines[i].text)), default=0)


def _neighbours(lines: list[SnippetLine], changed: list[int]) -> list[int]:
    """Return the unchanged lines around the changed ones, in the same function, the nearest first."""
    near = {
        i: min((abs(i - j) for j in changed if _function(lines, i) == _function(lines, j)), default=0)
        for i in range(len(lines))
        if i not in changed
    }
    return sorted((i for i in near if near[i]), key=near.__getitem__)


def _is_complete(lines: list[SnippetLine], index: int) -> bool:
    """Return whether a line stands for itself: it opens no block, and is no part of a longer statement."""
    text = lines[index].text.strip()
    opened = text[-1] in ",(" or _OPENS_BLOCK.search(text) or text.count("(") != text.count(")")
    inside = index and lines[index - 1].text.rstrip()[-1] in ",("
    return not opened and not inside


def _indent(line: SnippetLine) -> int:
    return len(line.text) - len(line.text.lstrip())


MODULE = "my_attention"  # where a test imports from


@dataclass(frozen=True)
class PropertyTest:
    """A property that right attention has, and a test of it for each template."""

    name: str
    property: str  # what holds, in a sentence
    codes: dict[str, str]  # by template: a test file, complete but for the reader's own module


PROPERTY_TESTS = {
    name: PropertyTest(name, **entry)
    for name, entry in tomllib.loads((_FOLDER / "properties.toml").read_text(encoding="utf-8")).items()
}


def code_of_test(mistake: Mistake, kind: str) -> str:
    """Return the test that finds a mistake, for the template `kind`."""
    return PROPERTY_TESTS[mistake.test].codes[kind]


def kinds_with_a_test(mistake: Mistake) -> tuple[str, ...]:
    """Return the templates with the mistake planted for which its test has a version."""
    return tuple(kind for kind in mistake.plants if kind in PROPERTY_TESTS[mistake.test].codes)
