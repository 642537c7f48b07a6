"""Tests of properties that attention has, as source text: for the page of each mistake, and to paste.

Each property is one test, in a version for every template of `examples` to which it applies: the tests of the
template `head` are the functions of `properties/head.py`. They import what they test from `my_attention`, the
reader's file. A mistake names the test that finds it.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from regard.checker.examples import ALL_TEMPLATES, program_file
from regard.checker.mistake import Mistake

_FOLDER = Path(__file__).parent
MODULE = "my_attention"  # where a test imports from
# What only some tests of a file import, and the text that tells that they use it.
_OPTIONAL_IMPORTS = {
    "import pytest\n": "pytest.",
    "import torch.nn.functional as F\n": "F.",
    ", rotate": "rotate(",
}


@dataclass(frozen=True)
class PropertyTest:
    """A property that right attention has, and a test of it for each template."""

    name: str
    property: str  # what holds, in a sentence
    codes: dict[str, str]  # by template: a test file, complete but for the reader's own module


def _read_codes(kind: str) -> dict[str, str]:
    """Return the tests of a template by the names of their functions, each as a file of its own."""
    file = _FOLDER / "properties" / program_file(kind).name
    if not file.exists():
        return {}
    # Two empty lines, which PEP 8 has only between definitions at the top level, separate the tests.
    imports, *blocks = file.read_text(encoding="utf-8").rstrip("\n").split("\n\n\n")
    tests = [block for block in blocks if block.startswith("def ")]
    start = [block for block in blocks if block not in tests]  # on several processes: how to start the test
    codes = {}
    for test in tests:
        name = test[len("def ") : test.index("(")]
        codes[name] = "\n\n\n".join([_used_imports(imports, test), test, *start]) + "\n"
    return codes


def _used_imports(imports: str, test: str) -> str:
    for text, use in _OPTIONAL_IMPORTS.items():
        if use not in test:
            imports = imports.replace(text, "")
    return imports


def _read_tests() -> dict[str, PropertyTest]:
    codes = {kind: _read_codes(kind) for kind in ALL_TEMPLATES}
    properties = tomllib.loads((_FOLDER / "properties.toml").read_text(encoding="utf-8"))
    tests = {}
    for name, sentence in properties.items():
        function = f"test_{name.replace('-', '_')}"
        versions = {kind: functions[function] for kind, functions in codes.items() if function in functions}
        tests[name] = PropertyTest(name, sentence, versions)
    return tests


PROPERTY_TESTS = _read_tests()


def code_of_test(mistake: Mistake, kind: str) -> str:
    """Return the test that finds a mistake, for the template `kind`."""
    return _test_of(mistake).codes[kind]


def kinds_with_a_test(mistake: Mistake) -> tuple[str, ...]:
    """Return the templates with the mistake planted for which its test has a version."""
    return tuple(kind for kind in mistake.plants if kind in _test_of(mistake).codes)


def _test_of(mistake: Mistake) -> PropertyTest:
    if mistake.test not in PROPERTY_TESTS:
        raise ValueError(f"{mistake.name}: test: there is no {mistake.test!r} in properties.toml")
    return PROPERTY_TESTS[mistake.test]
