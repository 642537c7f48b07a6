"""The catalogue reads well and every entry has an example that runs."""

import ast
import re

import pytest

from regard.checker.catalogue import CATALOGUE, THEMES, get_mistake
from regard.checker.examples import example_program, mended_program, plant_mistake
from regard.checker.snippet import LENGTH, make_snippet


def test_names_are_kebab_case_and_unique():
    names = [m.name for theme in THEMES.values() for m in theme]
    assert len(names) == len(set(names)) == len(CATALOGUE)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in names)


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=lambda m: m.name)
def test_an_entry_says_everything(entry):
    assert entry.what
    assert entry.effect.endswith(".")
    assert entry.fix
    assert entry.origin
    assert entry.symptom.endswith(".")
    assert entry.why.endswith(".")
    assert entry.plants
    compile(example_program(entry), entry.name, "exec")
    for kind in entry.plants:
        compile(plant_mistake(entry, kind), entry.name, "exec")


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=lambda m: m.name)
def test_a_snippet_is_short_and_cut_from_the_programs_that_are_tested(entry):
    snippet = make_snippet(entry)
    assert 0 < len(snippet) <= LENGTH + 2
    assert {line.mark for line in snippet} & {"+", "-"}
    ast.parse("\n".join(line.text for line in snippet if line.mark != "+" or "-" not in _marks(snippet)))
    sources = [(mended_program(entry, kind), plant_mistake(entry, kind)) for kind in entry.plants]
    assert any(
        all(_holds(template, line.text) for line in snippet if line.mark != "-")
        and all(_holds(planted, line.text) for line in snippet if line.mark != "+")
        for template, planted in sources
    )


def _marks(snippet):
    return {line.mark for line in snippet}


def _holds(program, line):
    """Whether a program has this line, however indented."""
    return line.strip() in {text.strip() for text in program.splitlines()}


def test_an_unknown_name_is_answered_with_its_neighbours():
    with pytest.raises(ValueError, match=r"'no-scal'.*no-scale"):
        get_mistake("no-scal")
    with pytest.raises(ValueError, match="--list"):
        get_mistake("zzzzzz")
