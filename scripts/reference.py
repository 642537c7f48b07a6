"""Write the generated parts of docs/reference: signatures, methods and commands, from the code itself.

    python -m scripts.reference            rewrite the pages
    python -m scripts.reference --check    exit with 1 if one is out of date

A heading such as ## `regard.attend` is followed by the signature of that name. A class that is listed in
`METHODS` is also followed by a table of its methods and properties, the title "The command" by every command
with its options, and the title of the index by the names on every page. Each generated part stands between
two HTML comments; everything else is written by hand and left alone. `tests/test_docs.py` fails if a page is
out of date.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from regard.support.files import atomic_write

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
START, END = "<!-- generated from the code: {} -->", "<!-- end -->"
HEADING = re.compile(r"^## `(regard(?:\.\w+)+)`$")
COMMANDS, CONTENTS = "# The command", "## The pages"
PAGES = (
    "attention",
    "masks",
    "maps",
    "capture",
    "interventions",
    "heads",
    "policies",
    "spans",
    "checking",
    "monitor",
    "stages",
    "layers",
    "gpt",
    "command",
    "files",
)
"""The pages in the order of the index, and of the sidebar."""
WIDTH = 100
METHODS = (
    "regard.AttentionMap",
    "regard.Audit",
    "regard.Capture",
    "regard.maps.LinearAttentionMap",
    "regard.Mask",
    "regard.Monitor",
    "regard.Report",
    "regard.checker.VisibilityTable",
    "regard.comparison.Comparison",
    "regard.comparison.Parting",
    "regard.comparison.PartDifference",
    "regard.conformance.Judgement",
    "regard.gpt.GPT",
    "regard.heads.HeadTable",
    "regard.policies.CacheState",
    "regard.policies.Retained",
    "regard.policies.RetentionCurve",
    "regard.policies.Rounded",
    "regard.policies.SelectionState",
    "regard.heads.TableDifference",
    "regard.layers.KVCache",
    "regard.maps.SignedMap",
    "regard.maps.Spans",
    "regard.monitor.MonitorHistory",
    "regard.mutants.MutationReport",
    "regard.recorder.Attribution",
    "regard.recorder.Certificate",
    "regard.recorder.Evidence",
    "regard.recorder.Layer",
    "regard.recorder.OutputProjection",
    "regard.recorder.Predictions",
    "regard.spans.SpanTable",
    "regard.spans.Spans",
    "regard.vllm.Worker",
)


def reference(text: str) -> str:
    """The text of a page of the reference with its generated parts made anew."""
    written = re.sub(r"\n<!-- generated from the code: .*?<!-- end -->\n", "", text, flags=re.DOTALL)
    lines: list[str] = []
    for line in written.splitlines():
        lines.append(line)
        if heading := HEADING.match(line):
            lines += _generated("signature", _signature_block(heading[1]))
            if heading[1] in METHODS:
                lines += _generated("methods", _method_table(resolve(heading[1])))
        elif line == COMMANDS:
            lines += _generated("commands", _commands())
        elif line == CONTENTS:
            lines += _generated("contents", _contents())
    return "\n".join(lines) + "\n"


def resolve(name: str) -> Any:
    """The object of a dotted name: its package is imported, the rest are attributes."""
    package, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(package), attribute)


def signature(thing: Any, name: str) -> str:
    """A call of `thing` as it is declared, on several lines if one is too long."""
    declared = inspect.signature(thing)
    parameters = [p for p in declared.parameters.values() if p.name not in ("self", "cls")]
    declared = declared.replace(parameters=[_plain(p) for p in parameters])
    result = declared.return_annotation
    if inspect.isclass(thing):
        result = inspect.Signature.empty
    declared = declared.replace(return_annotation=_Printed(result) if isinstance(result, str) else result)
    text = name + str(declared)
    if len(text) <= WIDTH:
        return text
    inner, ending = [], str(declared.replace(parameters=[]))[2:]
    for parameter in declared.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in inner and not _has_star(inner):
            inner.append("*")
        inner.append(str(parameter))
    return name + "(\n" + "".join(f"    {part},\n" for part in inner) + ")" + ending


def _has_star(parts: list[str]) -> bool:
    return any(part.startswith("*") and not part.startswith("**") for part in parts)


def _plain(parameter: inspect.Parameter) -> inspect.Parameter:
    """A parameter whose annotation and default print as a reader would write them."""
    default, annotation = parameter.default, parameter.annotation
    # Annotations are strings here, or forward references in a NamedTuple, and would print with quotes.
    annotation = getattr(annotation, "__forward_arg__", annotation)
    if isinstance(annotation, str):
        parameter = parameter.replace(annotation=_Printed(annotation))
    if (
        default is inspect.Parameter.empty
        or default is None
        or (isinstance(default, str | int | float | tuple) and len(repr(default)) <= 40)
    ):
        return parameter
    shown = repr(default)
    return parameter.replace(default=_Printed("..." if len(shown) > 40 or "<" in shown else shown))


class _Printed:
    """Something whose `repr` is a given text."""

    def __init__(self, text: str) -> None:
        self.text = re.sub(r" at 0x[0-9a-f]+", "", text)

    def __repr__(self) -> str:
        return self.text


def _generated(what: str, lines: list[str]) -> list[str]:
    """Lines between the two comments that mark them, or none."""
    return ["", START.format(what), *lines, END] if lines else []


def _signature_block(name: str) -> list[str]:
    thing = resolve(name)
    if not callable(thing) or (isinstance(thing, type) and issubclass(thing, Exception)):
        return []
    return ["```python", signature(thing, name), "```"]


def _method_table(cls: type) -> list[str]:
    """Every public method and property, with the first sentence of its docstring."""
    rows = ["| | |", "|---|---|"]
    for name, member in public_members(cls):
        about = first_sentence(member).replace("|", "\\|")
        if isinstance(member, property | cached_property):
            rows.append(f"| `.{name}` | {about} |")
        else:
            call = (
                re.sub(r"\s+", " ", signature(getattr(cls, name), f".{name}"))
                .replace("( ", "(")
                .replace(", )", ")")
            )
            rows.append(f"| `{_short(call)}` | {about} |".replace(" | None", " \\| None"))
    return rows


def _short(call: str) -> str:
    """A call without its annotations, which a table has no room for."""
    return re.sub(r"\|", "\\|", _without_annotations(call))


def _without_annotations(call: str) -> str:
    name, _, rest = call.partition("(")
    parameters, depth, current = [], 0, ""
    for character in rest[: rest.rindex(")")]:
        depth += character in "([{"
        depth -= character in ")]}"
        if character == "," and depth == 0:
            parameters.append(current.strip())
            current = ""
        else:
            current += character
    parameters.append(current.strip())
    shown = []
    for parameter in filter(None, parameters):
        declared, _, default = parameter.partition(" = ")
        bare = declared.partition(":")[0]
        shown.append(f"{bare}={default}" if default else bare)
    return f"{name}({', '.join(shown)})"


MEMBERS = (property, cached_property, classmethod, staticmethod)


def public_members(cls: type) -> Iterator[tuple[str, Any]]:
    """The methods and properties that a class of ours defines, and the operators that its users write."""
    operators = ("__getitem__", "__matmul__", "__len__", "__iter__", "__and__", "__or__", "__invert__")
    listed: dict[str, Any] = {}
    for owner in reversed([owner for owner in cls.__mro__ if owner.__module__.startswith("regard")]):
        for name, member in vars(owner).items():
            wanted = name in operators or not name.startswith("_")
            is_member = inspect.isroutine(member) or isinstance(member, MEMBERS)
            if wanted and is_member:
                listed[name] = member
    yield from listed.items()


def first_sentence(member: Any) -> str:
    """The first paragraph of a docstring, up to its first full stop."""
    text = inspect.getdoc(member) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[.?])\s", paragraph)[0]


def _commands() -> list[str]:
    """Every command with its usage, what it does, and a table of its arguments and options."""
    import typer.main

    from regard.cli import app

    group = typer.main.get_command(app)
    lines: list[str] = []
    for name in sorted(group.commands):  # type: ignore[attr-defined]
        command = group.commands[name]  # type: ignore[attr-defined]
        about = " ".join(inspect.cleandoc(command.help or "").split("\n\n")[0].split())
        lines += ["", f"## `regard {name}`", "", about, "", "| argument or option | |", "|---|---|"]
        for parameter in command.params:
            spelled = ", ".join(f"`{option}`" for option in parameter.opts) or f"`{parameter.name}`"
            if parameter.param_type_name == "argument":
                spelled = f"`{parameter.metavar or (parameter.name or '').upper()}`".replace("|", "\\|")
            text = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
            lines.append(f"| {spelled} | {text} |")
    return lines[1:]


def _contents() -> list[str]:
    """A table of the pages, with links to the names on each."""
    rows = ["| page | what is on it |", "|---|---|"]
    for page in PAGES:
        title, *lines = (REFERENCE / f"{page}.md").read_text(encoding="utf-8").splitlines()
        links, slugs = [], set()
        for line in lines:
            if heading := re.match(r"## `(regard[. ](.+))`$", line):
                slug = heading_slug(heading[1])
                # The second of two headings that differ in case only, as `capture` and `Capture`.
                links.append(f"[`{heading[2]}`]({page}.md#{slug}{'-1' if slug in slugs else ''})")
                slugs.add(slug)
        rows.append(f"| [{title.removeprefix('# ')}]({page}.md) | {', '.join(links) or '–'} |")
    return rows


def heading_slug(heading: str) -> str:
    """The anchor that GitHub and MyST give to a heading.

    >>> heading_slug("Each tutorial's `spelling`"), heading_slug("regard.attention_map")
    ('each-tutorials-spelling', 'regardattention_map')
    """
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit with 1 if a page is out of date")
    check = parser.parse_args().check
    for path in sorted(REFERENCE.glob("*.md")):
        before = path.read_text(encoding="utf-8")
        after = reference(before)
        if check:
            if before != after:
                sys.exit(1)
        elif before != after:
            with atomic_write(path) as temporary:
                temporary.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
